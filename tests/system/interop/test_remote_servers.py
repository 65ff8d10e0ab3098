"""The client for people against smbd in the ways that it can be configured: for guests, anonymous users, for SMB 1."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli.main import main
from smb3server.client import connect
from tools.access_differential import servers
from tools.access_differential.servers import LOGINS, SHARE

pytestmark = pytest.mark.interop
USER = LOGINS[0]
GUESTS = "guest ok = yes\n[global]\nmap to guest = bad user\nguest account = nobody\n"


@contextlib.contextmanager
def samba(options: str) -> Iterator[tuple[int, Path]]:
    if missing := servers.missing():
        pytest.skip(missing)
    with (
        tempfile.TemporaryDirectory(prefix="clink-samba") as folder,
        servers.running_samba(Path(folder) / "samba", options) as found,
    ):
        Path(folder).chmod(0o755)
        yield found


@pytest.fixture(scope="module")
def for_guests() -> Iterator[tuple[int, Path]]:
    with samba(GUESTS) as found:
        yield found


def test_anonymous_users_and_guests(
    for_guests: tuple[int, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port, folder = for_guests
    (folder / "readme.txt").write_text("for all\n")
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "whatever")
    where = f"127.0.0.1:{port}/{SHARE}"
    for words in (["--anonymous", f"smb://{where}"], ["--guest", f"smb://{where}"], ["--guest", f"smb://who@{where}"]):
        assert main(["client", "ls", *words]) == 0, capsys.readouterr().err
        assert "readme.txt" in capsys.readouterr().out
    assert main(["client", "cat", "--anonymous", f"smb://{where}/readme.txt"]) == 0
    capsys.readouterr()
    assert main(["client", "ls", f"smb://who@{where}"]) == 1
    assert "made a guest of who" in capsys.readouterr().err
    assert main(["client", "ls", f"smb://{USER.name}@{where}", "--anonymous", "--encrypt"]) == 1
    assert "no key" in capsys.readouterr().err


def test_the_shares_of_a_server(
    for_guests: tuple[int, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port, _ = for_guests
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    for words in ([f"smb://{USER.name}@127.0.0.1:{port}"], ["--guest", f"//127.0.0.1:{port}"]):
        assert main(["client", "ls", "-l", *words]) == 0, capsys.readouterr().err
        found = {line.split()[1]: line.split()[0] for line in capsys.readouterr().out.splitlines()}
        assert found[SHARE] == "disk" and found["IPC$"] == "pipe"
    assert main(["client", "ls", f"smb://{USER.name}@127.0.0.1:{port}"]) == 0
    assert capsys.readouterr().out == f"{SHARE}/\n"
    assert main(["client", "ls", f"smb://{USER.name}@127.0.0.1:{port}/nosuch"]) == 1
    assert "127.0.0.1 has no share 'nosuch'" in capsys.readouterr().err


def test_a_server_that_tells_nobody_its_shares(capsys: pytest.CaptureFixture[str]) -> None:
    with samba("[global]\nrestrict anonymous = 2\n") as (port, _):
        assert main(["client", "ls", "--anonymous", f"smb://127.0.0.1:{port}"]) == 1
        assert "127.0.0.1 does not let" in capsys.readouterr().err


def test_a_server_that_speaks_smb_1_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    with samba("[global]\nserver max protocol = NT1\nserver min protocol = NT1\n") as (port, _):
        assert main(["client", "ls", f"smb://{USER.name}@127.0.0.1:{port}/{SHARE}"]) == 1
        assert "the server speaks SMB 1 only" in capsys.readouterr().err
        main(["doctor", f"//127.0.0.1:{port}/{SHARE}", "--user", f"{USER.name}:{USER.password}"])
        assert "SMB 1 only" in capsys.readouterr().out


def test_encryption_asked_of_an_old_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    with samba("[global]\nserver max protocol = SMB2_10\n") as (port, _):
        assert main(["client", "ls", "--encrypt", f"smb://{USER.name}@127.0.0.1:{port}/{SHARE}"]) == 1
        assert "the server speaks SMB 2.1; encryption begins with SMB 3.0" in capsys.readouterr().err
        assert main(["client", "ls", f"smb://{USER.name}@127.0.0.1:{port}/{SHARE}"]) == 0


def test_small_files_travel_in_chains(tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    data = {f"file {number}": os.urandom(number) for number in (0, 1, 7, 8, 4096, 65536, 65537)}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)

    async def copy(port: int, encrypt: bool) -> None:
        where = f"smb://{USER.name}@127.0.0.1:{port}/{SHARE}"
        async with connect(where, password=USER.password, encrypt=encrypt) as share:
            for name, content in data.items():
                await share.upload(tmp_path / name, name, exact=True)
                await share.rename(name, f"{name} too")
                await share.download(f"{name} too", tmp_path / "back" / name, exact=True, expected=len(content))
                await share.remove(f"{name} too")
            with pytest.raises(FileNotFoundError):
                await share.download("none", tmp_path / "none", expected=5)
            assert share.link._chains.proven

    with samba("") as (port, folder):
        for encrypt in (False, True):
            asyncio.run(copy(port, encrypt))
            assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == data
            assert not list(folder.iterdir())
            for path in (tmp_path / "back").iterdir():
                path.unlink()
