"""The client for people against smbd in the ways that it can be configured: for guests, anonymous users, for SMB 1."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli.main import main
from tools.access_differential import servers
from tools.access_differential.servers import LOGINS, SHARE

pytestmark = pytest.mark.interop
USER = LOGINS[0]
GUESTS = "guest ok = yes\n[global]\nmap to guest = bad user\nguest account = nobody\n"


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
    yield from samba(GUESTS)


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
