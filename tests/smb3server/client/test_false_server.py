"""A server that knows no password gets no file, and gives none: by the command, the library, and smbd://."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from smb3server.cli.main import main
from smb3server.client import connect
from smb3server.client.sync import connect as connect_sync
from tests.lab import meddler
from tests.lab.remote import Home, home, run

PUBLIC = "[server]\nguest = true\nanonymous = true\n[[share]]\nname = 'public'\npath = '{}'\nguest = true\n"
Use = Callable[[str, Path], object]


@pytest.fixture(params=["guest", "nobody"])
def false(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Home, Path]]:
    """A server that takes everybody for a guest, or for nobody, and the folder that it shows."""
    folder = tmp_path / "public"
    folder.mkdir()
    (folder / "tool.sh").write_text("the attacker's")
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "the real password")
    monkeypatch.chdir(tmp_path)
    meddler.accept_everybody(monkeypatch, guest=request.param == "guest")
    with home(tmp_path, text=PUBLIC.format(folder)) as served:
        yield served, folder


def command(*words: str) -> Use:
    def use(url: str, folder: Path) -> None:
        (folder.parent / "secret.txt").write_text("secret")
        status = main(["client", *(word.replace("URL", url) for word in words)])
        if status:
            raise PermissionError(status)

    return use


async def _library(url: str) -> object:
    async with connect(url) as share:
        return await share.read_bytes("tool.sh")


def blocking(url: str, folder: Path) -> object:
    with connect_sync(url, sign=False) as share:
        return share.read_bytes("tool.sh")


def filesystem(url: str, folder: Path) -> object:
    return fsspec.open(f"{url}/tool.sh".replace("smb://", "smbd://"), skip_instance_cache=True).open().read()


USES = {
    "get": command("get", "URL/tool.sh", "."),
    "get unsigned": command("get", "--no-signing", "URL/tool.sh", "."),
    "put": command("put", "secret.txt", "URL/"),
    "ls": command("ls", "URL"),
    "bench": command("bench", "URL"),
    "library": lambda url, folder: run(lambda: _library(url)),
    "blocking library": blocking,
    "filesystem": filesystem,
}


@pytest.mark.parametrize("name", USES)
def test_the_client_refuses_it(false: tuple[Home, Path], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    served, folder = false
    url = served.url.replace("/share", "/public")
    with pytest.raises(PermissionError) as caught:
        USES[name](url, folder)
    assert "need not know the password" in f"{caught.value}{capsys.readouterr().err}"
    assert [path.name for path in folder.iterdir()] == ["tool.sh"]
    assert not (folder.parent / "tool.sh").exists()


def test_doctor_does_not_work_with_it(false: tuple[Home, Path], capsys: pytest.CaptureFixture[str]) -> None:
    served, _ = false
    main(["doctor", f"//127.0.0.1:{served.port}/public", "--user", "u:pw", "--rdma-port", str(served.rdma_port)])
    told = capsys.readouterr().out
    assert "need not know the password" in told and "moved" not in told
