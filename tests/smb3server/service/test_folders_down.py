"""Shares whose folder is not there: they are down, the others are served, and they come up by themselves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from smb3server.admin.socket import SOCKET_NAME, ask
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.command_line.options import ServerOptions, parse_options
from smb3server.config.error import ConfigError
from smb3server.config.examination import examine
from smb3server.service import service as service_module
from smb3server.service.service import Service
from smb3server.wire.status import NtStatus
from tests.lab.served import served
from tests.lab.serving import make, serving, session_of, status_of_connect
from tools.support import own_user

ALICE = '[[user]]\nname = "alice"\npassword = "pw"\n'
PATIENCE = 20.0


def share(name: str, path: Path, more: str = "") -> str:
    return f'[[share]]\nname = "{name}"\npath = "{path}"\n{own_user.LINE}{more}\n'


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "LOOK_FOR_FOLDERS", 0.05)


async def connects(service: Service, name: str, status: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        async with session_of(service, "alice") as session:
            found = await status_of_connect(session, name)
        if found == status or time.monotonic() > deadline:
            assert found == status
            return
        await asyncio.sleep(0.05)


def test_one_missing_folder_keeps_its_share_down_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").mkdir()
    later = tmp_path / "usb" / "disk"
    text = ALICE + share("data", tmp_path / "data") + share("later", later)

    async def main() -> None:
        async with serving(tmp_path, text) as service:
            await connects(service, "data", 0)
            await connects(service, "later", NtStatus.BAD_NETWORK_NAME)
            assert f"share later is down: {later} does not exist" in caplog.text
            # A reload leaves it as it is, and one with other mistakes is still possible.
            assert (await service.reload()).notes == [f"share later is down: {later} does not exist"]
            assert service.shares.down == {"later": f"{later} does not exist"}
            later.mkdir(parents=True)
            await connects(service, "later", 0)
            assert service.shares.down == {}
            async with session_of(service, "alice") as session:
                await make(await session.tree_connect("later"), "file")
            # It goes, and comes back.
            later.rename(tmp_path / "away")
            await connects(service, "later", NtStatus.BAD_NETWORK_NAME)
            while not service.shares.down:
                await asyncio.sleep(0.02)
            await service.reload()
            (tmp_path / "away").rename(later)
            await connects(service, "later", 0)
            # Whoever takes it out of the configuration hears no more of it.
            later.rename(tmp_path / "away")
            (tmp_path / "smb3server.toml").write_text(ALICE + share("data", tmp_path / "data"))
            await service.reload()
            assert service.shares.down == {}

    asyncio.run(main())
    assert caplog.text.count("share later is down") < 4


def test_a_folder_of_the_command_line_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--share data: .*nowhere does not exist"):
        parse_arguments(["--share", f"data={tmp_path}/nowhere", "--user", "alice:pw"])


def test_check_warns(tmp_path: Path) -> None:
    file = tmp_path / "smb3server.toml"
    file.write_text(ALICE + share("later", tmp_path / "nowhere"))
    file.chmod(0o600)
    options: ServerOptions = parse_options(["--config", str(file)])
    found = examine(options)
    assert not found.problems
    assert any("nowhere does not exist: the share stays down" in warning.text for warning in found.warnings)


def test_status_says_which_share_is_down(tmp_path: Path) -> None:
    file = tmp_path / "smb3server.toml"
    file.write_text(ALICE + share("later", tmp_path / "nowhere"))
    file.chmod(0o600)
    with served(tmp_path, "--config", str(file)) as server:
        assert f"share later: down: {tmp_path}/nowhere does not exist" in server.lines
        assert ask(server.state / SOCKET_NAME, "status")["down"] == {"later": f"{tmp_path}/nowhere does not exist"}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_empty_mount_point_is_not_served(tmp_path: Path) -> None:
    place = tmp_path / "usb"
    place.mkdir()
    text = ALICE + share("later", place, "require_mount = true\n")

    def mount(*command: str | Path) -> None:
        subprocess.run(command, check=True)

    async def main() -> None:
        async with serving(tmp_path, text) as service:
            await connects(service, "later", NtStatus.BAD_NETWORK_NAME)
            mount("mount", "-t", "tmpfs", "smb3-pack", place)
            await connects(service, "later", 0)
            mount("umount", "-l", place)
            await connects(service, "later", NtStatus.BAD_NETWORK_NAME)
            mount("mount", "-t", "tmpfs", "smb3-pack", place)
            await connects(service, "later", 0)

    try:
        asyncio.run(main())
    finally:
        while os.path.ismount(place):
            mount("umount", "-l", place)
