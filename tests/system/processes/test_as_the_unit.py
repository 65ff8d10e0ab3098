"""Several processes as the packaged unit runs them: its user, capabilities, filter and sandbox, what systemd is told,
and the web page, which shows all of them."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.lab.processes import PASSWORD, USER, Processes, wait_until
from tests.lab.served import ROOT, open_up
from tests.lab.unit import NUMBERS, as_user, confined, words
from tools.support.ports import free_port

SERVER = "daemon"
"""A user of the host."""
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("smbclient", "setpriv", "systemd-analyze")),
        reason="needs smbclient, setpriv and systemd-analyze",
    ),
    pytest.mark.skipif(not NUMBERS.exists(), reason="needs linux-libc-dev of x86-64"),
]


class Unit:
    """The processes, and the socket on which a service manager hears of them."""

    def __init__(self, folder: Path) -> None:
        open_up(folder)
        self.server = Processes(folder)
        self.page = free_port()
        text = self.server.config.read_text().replace(
            "[server]\n", f'[server]\nsandbox = true\nadmins = ["{USER}"]\nrdma = "iwarp"\n', 1
        )
        self.server.config.write_text(text + f"[web]\nport = {self.page}\n")
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.manager.settimeout(60)
        user = pwd.getpwnam(SERVER)
        self.server.state.mkdir(mode=0o700)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
        self.environment = {
            "NOTIFY_SOCKET": str(folder / "notify"),
            "WATCHDOG_USEC": str(int(words("WatchdogSec")[0]) * 1_000_000),
        }

    def start(self) -> None:
        self.server.start([*as_user(SERVER), *confined()], self.environment)

    def told(self, key: str) -> None:
        """Wait until the service manager was told so. NotifyAccess=main: nobody but the parent may tell it."""
        assert self.server.process is not None
        while True:
            message, ancillary, _, _ = self.manager.recvmsg(4096, 256)
            assert int.from_bytes(ancillary[0][2][:4], sys.byteorder) == self.server.process.pid, message
            if key in message.decode().splitlines():
                return

    def reload(self) -> None:
        """As ExecReload= does."""
        command = [sys.executable, "-m", "smb3server", "reload", "--state", str(self.server.state)]
        done = subprocess.run([*as_user(SERVER), *command], check=False, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    found = Unit(tmp_path_factory.mktemp("unit"))
    found.start()
    try:
        yield found
    finally:
        status = found.server.stop()
        assert "Traceback" not in found.server.log()
        found.manager.close()
    assert status == 0


def test_systemd_is_told_by_the_parent_alone(unit: Unit) -> None:
    unit.told("READY=1")


def test_each_process_has_the_rights_of_the_unit(unit: Unit) -> None:
    running = unit.server.processes()
    assert sorted(running) == [1, 2]
    capabilities = set()
    for entry in running.values():
        lines = Path(f"/proc/{entry['pid']}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        assert status["Uid"].split()[0] == str(pwd.getpwnam(SERVER).pw_uid)
        assert status["Seccomp_filters"] == "2"
        assert status["NoNewPrivs"] == "1"
        capabilities.add(status["CapEff"])
    assert len(capabilities) == 1


@pytest.mark.parametrize("process", [1, 2])
@pytest.mark.parametrize("share", ["one", "two", "kept"])
def test_every_address_leads_to_every_share(unit: Unit, share: str, process: int, tmp_path: Path) -> None:
    got = tmp_path / "got"
    said = unit.server.smbclient(share, f"get name {got}; put {unit.server.config} put-{process}", process)
    assert got.read_text() == f"this is {share}", said
    assert (unit.server.folder / share / f"put-{process}").read_bytes() == unit.server.config.read_bytes()


def test_smb_direct_listens_at_the_address_of_each(unit: Unit) -> None:
    listening = [text for text in unit.server.ask("status")["server"]["addresses"] if text.startswith("iwarp ")]
    assert [text.split()[-1].rpartition(":")[0] for text in listening] == unit.server.addresses


def test_the_page_shows_all_processes(unit: Unit) -> None:
    async def report(browser: aiohttp.ClientSession) -> dict[str, Any]:
        async with browser.get("api/stream") as response:
            assert response.status == 200
            async for line in response.content:
                if line.startswith(b"data: "):
                    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                    return found
        raise AssertionError("no report")

    async def body() -> None:
        client = unit.server.client("two", 2)
        await client.connected()
        jar = aiohttp.CookieJar(unsafe=True)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{unit.page}/", cookie_jar=jar) as browser:
                async with browser.post("api/login", json={"user": USER, "password": PASSWORD}) as response:
                    assert response.status == 200
                seen = await report(browser)
                assert [entry["number"] for entry in seen["processes"]] == [1, 2]
                shares = {entry["share"]: entry["process"] for entry in seen["shares"] if entry["share"] != "IPC$"}
                assert shares == {"one": 1, "two": 2, "kept": 2}
                assert [entry["process"] for entry in seen["sessions"]] == [2]
                async with browser.get("api/files") as response:
                    assert response.status == 200
                    assert [entry["user"] for entry in (await response.json())["sessions"]] == [USER]
        finally:
            client.drop()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_reload_reaches_all(unit: Unit) -> None:
    text = unit.server.config.read_text()
    unit.server.config.write_text(text.replace('name = "two"\n', 'name = "two"\nread_only = true\n'))
    unit.reload()
    assert "NT_STATUS_ACCESS_DENIED" in unit.server.smbclient("two", "mkdir refused", 2)
    unit.server.config.write_text(text)
    unit.reload()
    assert "NT_STATUS" not in unit.server.smbclient("two", "mkdir made", 2)


def test_a_process_that_dies_comes_back_with_its_rights(unit: Unit) -> None:
    pid = unit.server.kill(2)
    unit.server.wait_for_another(2, pid)
    wait_until(lambda: "NT_STATUS" not in unit.server.smbclient("two", "ls", 1))


def test_stop_ends_all_and_says_so(unit: Unit) -> None:
    pids = [entry["pid"] for entry in unit.server.processes().values()]
    process = unit.server.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    unit.told("STOPPING=1")
    assert unit.server.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
