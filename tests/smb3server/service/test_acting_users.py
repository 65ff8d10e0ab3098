"""Which user of the host stands behind a client's files: never root, unless the configuration says so."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from smb3server.config.arguments import parse_arguments, parse_share
from smb3server.config.error import ConfigError
from smb3server.service import stand_in
from smb3server.wire.status import NtStatus
from tests.lab.serving import (
    READ,
    WRITE,
    make,
    needs_root,
    serving,
    session_of,
    status_of_connect,
    status_of_open,
    tree_of,
)

LONGEST_TURN = 0.1

pytestmark = needs_root
NOBODY = pwd.getpwnam("nobody").pw_uid
PLAIN = 4321
"""A uid that the host has no name for."""

CONFIG = """[server]
guest = true
[[user]]
name = "carol"
password = "pw"
[[user]]
name = "gamer"
password = "pw"
unix_user = "games"
"""


def share(path: Path, *lines: str, name: str = "data") -> str:
    return "\n".join((f'[[share]]\nname = "{name}"\npath = "{path}"', *lines, ""))


def folder_of(tmp_path: Path, uid: int, mode: int = 0o755) -> Path:
    folder = tmp_path / f"of-{uid}"
    folder.mkdir()
    os.chown(folder, uid, uid)
    folder.chmod(mode)
    return folder


@pytest.mark.parametrize("user", ["carol", "stranger"])
@pytest.mark.parametrize(("owner", "actor"), [(PLAIN, PLAIN), (0, NOBODY)])
def test_users_without_one_of_their_own_act_as_the_folders_owner_or_nobody(
    tmp_path: Path, user: str, owner: int, actor: int
) -> None:
    folder = folder_of(tmp_path, owner, 0o777)
    (folder / "secret").write_text("root's alone")
    (folder / "secret").chmod(0o600)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(folder, "guest = true")) as service:
            async with tree_of(service, user, "data") as tree:
                await make(tree, "made")
                await make(tree, "folder", folder=True)
                assert await status_of_open(tree, "secret", READ) == NtStatus.ACCESS_DENIED
                assert await status_of_open(tree, "secret", WRITE) == NtStatus.ACCESS_DENIED
            assert "made" not in "".join(service.notes)
            assert any(note.startswith("share data: guests and users") for note in service.notes)

    asyncio.run(body())
    for name in ("made", "folder"):
        found = (folder / name).stat()
        assert found.st_uid == actor
        assert found.st_gid != 0


def test_supplementary_groups_of_the_folders_owner_are_not_lent(tmp_path: Path) -> None:
    """Else every guest would be in the groups of the person who owns the folder."""
    rich = next((e for e in pwd.getpwall() if e.pw_uid and len(os.getgrouplist(e.pw_name, e.pw_gid)) > 1), None)
    if rich is not None:
        os.chown(tmp_path, rich.pw_uid, rich.pw_gid)
    else:
        os.chown(tmp_path, PLAIN, PLAIN)
    assert stand_in.find(tmp_path).groups == ()


def test_an_account_with_a_unix_user_keeps_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAIN, 0o777)

    async def body() -> None:
        async with serving(tmp_path, CONFIG + share(folder)) as service, tree_of(service, "gamer", "data") as tree:
            await make(tree, "his")

    asyncio.run(body())
    assert (folder / "his").stat().st_uid == pwd.getpwnam("games").pw_uid


def test_the_start_says_who_acts_and_what_to_do_where_that_user_cannot_write(tmp_path: Path) -> None:
    closed, mine, shut = folder_of(tmp_path, 0), folder_of(tmp_path, PLAIN), tmp_path / "shut"
    shut.mkdir(mode=0o700)

    async def body() -> list[str]:
        text = share(closed, name="closed") + share(mine, name="mine") + share(shut, "read_only = true", name="shut")
        text += share(closed, "read_only = true", name="looked-at")
        text += share(closed, 'force_user = "root"', name="forced") + share(mine, 'users = ["gamer"]', name="his")
        async with serving(tmp_path, CONFIG + text) as service:
            return service.notes

    notes = {note.split(":")[0].removeprefix("share "): note for note in asyncio.run(body())}
    remedy = f"remedy: chown nobody {closed}, or set the share's force_user, or the users' unix_user"
    assert notes["closed"].endswith(f"act as nobody, who may not write there; {remedy}")
    assert notes["mine"].endswith(f"act as {PLAIN}")
    assert "may not read there" in notes["shut"]
    assert notes["looked-at"].endswith("act as nobody")
    assert "force_user is root" in notes["forced"]
    assert "his" not in notes


def test_force_user_root_is_the_administrators_word(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAIN)

    async def body() -> None:
        text = CONFIG + share(folder, 'force_user = "root"')
        async with serving(tmp_path, text) as service, tree_of(service, "carol", "data") as tree:
            await make(tree, "made")

    asyncio.run(body())
    assert (folder / "made").stat().st_uid == 0


def test_guests_do_not_pass_a_list_of_users_by_choosing_a_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, PLAIN)
    text = CONFIG + share(folder, "guest = true", 'users = ["carol", "gamer"]')

    async def body() -> None:
        async with serving(tmp_path, text + share(folder, "guest = true", name="open")) as service:
            async with session_of(service, "stranger") as session:
                assert await status_of_connect(session, "data") == NtStatus.ACCESS_DENIED
                assert await status_of_connect(session, "open") == 0
            async with session_of(service, "carol") as session:
                assert await status_of_connect(session, "data") == 0

    asyncio.run(body())


def test_a_share_of_the_command_line_may_name_its_user(tmp_path: Path) -> None:
    (found,) = parse_arguments(["--guest", "--share", f"x={tmp_path},user=games,ro"]).shares
    assert found.read_only
    assert found.force_user is not None
    assert found.force_user.uid == pwd.getpwnam("games").pw_uid
    assert parse_share(f"x={tmp_path}").force_user is None
    for wrong in (f"x={tmp_path},user=", "x=,user=games", "x=,ro"):
        with pytest.raises(ConfigError, match="write NAME=PATH"):
            parse_share(wrong)
    with pytest.raises(ConfigError, match="no user no-such-user"):
        parse_arguments(["--guest", "--share", f"x={tmp_path},user=no-such-user"])


def test_the_demo_gives_its_folder_to_who_its_users_act_as(tmp_path: Path) -> None:
    """``make serve`` as root: what clients make and what is there at the start belongs to nobody."""
    (tmp_path / "tools").mkdir()
    script = Path(__file__).parents[3] / "tools" / "serve_demo.sh"
    (tmp_path / "tools" / "serve_demo.sh").write_text(script.read_text())
    binary = tmp_path / ".venv" / "bin" / "smb3server"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\nexit 0\n")
    binary.chmod(0o755)
    for _ in range(2):
        subprocess.run(
            ["sh", str(tmp_path / "tools" / "serve_demo.sh")],
            check=True,
            env={**os.environ, "DEMO_PASSWORD": "x"},
            stdout=subprocess.DEVNULL,
        )
        for entry in (tmp_path / "demo-share", tmp_path / "demo-share" / "README.txt"):
            assert entry.stat().st_uid == NOBODY
