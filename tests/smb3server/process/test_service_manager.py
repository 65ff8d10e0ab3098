"""Talking to the service manager: messages, watchdog, sockets that it opened, and a server that it starts."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.process.service_manager import ServiceManager, passed_sockets
from tests.lab.served import ROOT, open_up
from tools.support.ports import free_port

PATIENCE = 30.0


class Manager:
    """What a service manager hears."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(PATIENCE)

    def heard(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")

    def until(self, line: str) -> list[str]:
        while line not in (lines := self.heard()):
            pass
        return lines


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@smb3server-test-{os.getpid()}")
    yield made
    made.socket.close()


def test_states_of_a_service(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.address, "PATH": "/bin"}
    told = ServiceManager.of_process(environment)
    assert environment == {"PATH": "/bin"}
    told.ready("serves tcp\n0.0.0.0:445")
    assert manager.heard() == ["READY=1", "STATUS=serves tcp 0.0.0.0:445"]
    with pytest.raises(ZeroDivisionError), told.reloading():
        first, second = manager.heard()
        assert (first, second.partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
        raise ZeroDivisionError
    # A reload that failed is over, too: the old configuration is in force.
    assert manager.heard() == ["READY=1"]
    told.failed("port 445 is taken")
    assert manager.heard() == ["STATUS=port 445 is taken"]
    told.stopping()
    assert manager.heard() == ["STOPPING=1"]
    told.close()
    told.ready("nobody hears this")


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "400000"}, 0.4),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": str(os.getpid())}, 0.4),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdogs_patience(environment: dict[str, str], seconds: float | None) -> None:
    assert ServiceManager.of_process(environment).watchdog == seconds


def test_a_watchdog_hears_the_event_loop(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smb3server.process.service_manager.STATUS_SECONDS", 0.02)
    texts = iter(["one session", "one session", "two sessions"])
    told = ServiceManager(manager.address, watchdog=0.04)

    async def serve() -> None:
        told.keep_informed(lambda: next(texts, "two sessions"))
        heard = []
        while len(heard) < 6:
            heard += await asyncio.to_thread(manager.heard)
        assert [line for line in heard if line.startswith("STATUS")] == ["STATUS=one session", "STATUS=two sessions"]
        assert heard.count("WATCHDOG=1") >= 3
        told.stopping()
        await asyncio.to_thread(manager.until, "STOPPING=1")
        await asyncio.sleep(0.06)
        manager.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.heard()
        told.close()

    asyncio.run(serve())


def test_a_manager_that_is_gone_hurts_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = ServiceManager(str(tmp_path / "nowhere"))
    told.ready("serving")
    assert "the service manager's socket" in caplog.text


def handed_over(*sockets: socket.socket, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process that gets the sockets as systemd hands them over."""
    start = (
        "import os, sys\n"
        f"for place, number in enumerate({[sock.fileno() for sock in sockets]}): os.dup2(number, 100 + place)\n"
        f"for place in range({len(sockets)}): os.dup2(100 + place, 3 + place)\n"
        f"os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='{len(sockets)}', LISTEN_FDNAMES='smb')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + code],
        pass_fds=[sock.fileno() for sock in sockets],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


TAKE = """
from smb3server.process.service_manager import passed_sockets
try:
    for sock in passed_sockets():
        print(sock.getsockname()[:2], os.get_inheritable(sock.fileno()), sock.gettimeout())
except ValueError as error:
    print(error)
print(sorted(name for name in os.environ if name.startswith("LISTEN_")), passed_sockets())
"""


def test_sockets_are_taken_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        said = handed_over(four, six, code=TAKE).stdout.splitlines()
        assert said == [f"{four.getsockname()} False 0.0", f"{six.getsockname()[:2]} False 0.0", "[] []"]


def test_sockets_that_are_unfit_are_told() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        assert "takes IPv4, too; remedy: BindIPv6Only=ipv6-only" in handed_over(both, code=TAKE).stdout
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert "does not listen on TCP" in handed_over(datagrams, code=TAKE).stdout
    with socket.socket() as idle:
        assert "does not listen on TCP" in handed_over(idle, code=TAKE).stdout


def test_sockets_of_another_process_are_left_alone() -> None:
    assert passed_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == []
    assert passed_sockets({}) == []


def test_a_server_tells_how_it_is(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    command = [sys.executable, "-m", "smb3server", "--share", f"d={tmp_path}", "--guest", "--listen", "127.0.0.1"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "200000",
        "RUNTIME_DIRECTORY": str(tmp_path),
    }
    with subprocess.Popen([*command, "--port", "0"], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            lines = manager.until("READY=1")
            assert lines[1].startswith("STATUS=serves tcp 127.0.0.1:")
            manager.until("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            manager.until("STOPPING=1")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            manager.socket.close()


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="needs systemd-socket-activate")
def test_systemd_hands_its_socket_over(tmp_path: Path) -> None:
    """The first connection starts the server, which serves it."""
    share = tmp_path / "share"
    share.mkdir()
    open_up(share)
    port = free_port()
    server = [sys.executable, "-m", "smb3server", "--share", f"d={share}", "--user", "u:pw", "--port", "1"]
    command = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", f"-EPYTHONPATH={ROOT}", *server]
    log = tmp_path / "log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while "Listening on" not in log.read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
            said = subprocess.run(
                ["smbclient", "//127.0.0.1/d", "-p", str(port), "-U", "u%pw", "-c", "ls"],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert said.returncode == 0, said.stdout + said.stderr + log.read_text()
            assert "the TCP sockets are the service manager's" in log.read_text()
        finally:
            process.terminate()
            process.wait(PATIENCE)
