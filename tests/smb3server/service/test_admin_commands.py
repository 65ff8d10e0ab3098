"""The commands that change a running server, as operators type them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli.admin.share import read_settings
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config.command_line.options import parse_options
from smb3server.config.examination import examine
from smb3server.wire.create import CreateDisposition
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost
from tests.lab.served import Served, done, open_up, refused, run_command, served
from tools.support import own_user


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """It shares ``data``; its users are alice and bob, its configuration is ``tmp_path``/c.toml."""
    open_up(tmp_path)
    for name in ("data", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / "c.toml").touch(0o600)
    write(tmp_path, "")
    with served(tmp_path, "--config", str(tmp_path / "c.toml")) as found:
        yield found


def write(folder: Path, more: str) -> None:
    users = "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("alice", "bob"))
    share = f'[[share]]\nname = "data"\npath = "{folder / "data"}"\n{own_user.LINE}'
    (folder / "c.toml").write_text(f"{users}{share}{more}")


def shares(server: Served) -> dict[str, str]:
    return {entry["name"]: entry["origin"] for entry in json.loads(done(server, "share", "list", "--json"))}


async def status_of(server: Served, share: str) -> int:
    try:
        async with server.tree("alice", share=share):
            return 0
    except ServerError as error:
        return error.status


def test_shares_of_run_time(server: Served, tmp_path: Path) -> None:
    more = str(tmp_path / "more")
    done(server, "share", "add", "more", more, "--set", "users=alice", "--set", "read_only=true")
    done(server, "share", "add", "brief", more, "--temporary")
    assert shares(server) == {"data": "configuration", "more": "run time", "brief": "until restart"}
    assert asyncio.run(status_of(server, "more")) == 0
    assert "one of this name" in refused(server, "share", "add", "MORE", more)
    assert "did you mean read_only" in refused(server, "share", "set", "more", "--set", "readonly=true")
    assert "not a directory" in refused(server, "share", "add", "x", str(tmp_path / "missing"))
    assert "configuration file" in refused(server, "share", "remove", "data")
    assert "none of this name" in refused(server, "share", "remove", "nothing")
    done(server, "share", "set", "more", "--unset", "read_only", "--set", "remark=new")
    stored = (server.state / "shares.toml").read_text()
    assert "read_only" not in stored and 'remark = "new"' in stored and "brief" not in stored
    assert (server.state / "shares.toml").stat().st_mode & 0o777 == 0o600
    # A reload keeps them; a share of the file with the same name takes over.
    write(tmp_path, f'[[share]]\nname = "more"\npath = "{more}"\n{own_user.LINE}')
    assert "the configuration file has it, too" in done(server, "reload")
    write(tmp_path, "")
    done(server, "reload")
    done(server, "share", "remove", "more")
    done(server, "share", "remove", "brief")
    assert asyncio.run(status_of(server, "more")) == NtStatus.BAD_NETWORK_NAME
    assert shares(server) == {"data": "configuration"}


def test_shares_of_run_time_survive_a_restart(tmp_path: Path) -> None:
    open_up(tmp_path)
    for name in ("data", "more", "gone"):
        (tmp_path / name).mkdir()
    (tmp_path / "c.toml").touch(0o600)
    write(tmp_path, "")
    with served(tmp_path, "--config", str(tmp_path / "c.toml")) as server:
        done(server, "share", "add", "more", str(tmp_path / "more"))
        done(server, "share", "add", "gone", str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    checked = examine(parse_options(["--config", str(tmp_path / "c.toml"), "--state", str(tmp_path / "state")]))
    assert not checked.problems and checked.run_time["more"] == str(tmp_path / "more")
    assert any("gone" in warning.setting and "does not exist" in warning.text for warning in checked.warnings)
    with served(tmp_path, "--config", str(tmp_path / "c.toml")) as server:
        assert asyncio.run(status_of(server, "more")) == 0
        assert any(line.startswith("share gone: down: ") for line in server.lines)
    assert '"gone"' in (tmp_path / "state" / "shares.toml").read_text()


def test_sessions_and_files(server: Served) -> None:
    async def main() -> None:
        async with server.tree("alice") as alice, server.tree("bob") as bob:
            file = await alice.create("file", READ_WRITE, CreateDisposition.CREATE)
            await bob.create("other", READ_WRITE, CreateDisposition.CREATE)

            def ask(*arguments: str) -> list[dict[str, str]]:
                return list(json.loads(done(server, *arguments, "--json")))

            (entry,) = await asyncio.to_thread(ask, "file", "list", "--user", "alice")
            assert (entry["path"], entry["access"]) == ("file", "rw")
            await asyncio.to_thread(done, server, "file", "close", entry["id"][:8])
            with pytest.raises(ServerError) as caught:
                await alice.read(file, 0, 1)
            assert caught.value.status == NtStatus.FILE_CLOSED
            # Nothing of it is left in the way of others.
            again = await bob.create("file", READ_WRITE)
            await bob.write(again, 0, b"x")
            (entry,) = await asyncio.to_thread(ask, "session", "list", "--user", "alice")
            await asyncio.to_thread(done, server, "session", "close", entry["id"])
            with pytest.raises((ServerError, ConnectionLost)):
                await alice.create("more", READ_WRITE, CreateDisposition.CREATE)
            await bob.write(again, 0, b"y")
            await asyncio.to_thread(done, server, "session", "close", "--user", "bob")
            assert await asyncio.to_thread(ask, "session", "list") == []
            assert await asyncio.to_thread(ask, "file", "list") == []
            assert "no session" in await asyncio.to_thread(refused, server, "session", "close", "123")

    asyncio.run(main())


def test_mistakes_are_all_told(server: Served, tmp_path: Path) -> None:
    write(tmp_path, 'nonsense = 1\nread_only = "yes"\n')
    told = refused(server, "reload")
    assert "nothing was changed" in told and "nonsense" in told and "read_only" in told
    assert "nonsense" in (tmp_path / "log").read_text()


def test_a_signal_reloads(server: Served, tmp_path: Path) -> None:
    write(tmp_path, f'[[share]]\nname = "more"\npath = "{tmp_path / "more"}"\n{own_user.LINE}')
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while "more" not in shares(server):
        assert time.monotonic() < deadline and server.process.poll() is None
    assert asyncio.run(status_of(server, "more")) == 0


def test_stop(server: Served) -> None:
    done(server, "stop", "--wait")
    assert server.process.wait(10) == 0
    assert run_command(server, "stop").returncode == 3


def test_values_of_settings() -> None:
    given = ["read_only=true", "users=alice, @staff", 'remark="a, b"', "max_opens=5", "path=a=b"]
    assert read_settings(given) == {
        "read_only": True,
        "users": ["alice", "@staff"],
        "remark": "a, b",
        "max_opens": 5,
        "path": "a=b",
    }
