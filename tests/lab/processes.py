"""A server of two processes, on loopback addresses that no other test has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smb3server.admin.socket import ask
from smb3server.client.protocol import open_tcp
from smbdirect.message_transport import MessageTransport
from tests.lab.persistent import PersistentShare
from tests.lab.served import ROOT
from tools.support import own_user
from tools.support.ports import free_port

USER, PASSWORD = "u", "pw"


class Processes:
    """Shares ``folder``/one (process 1), /two and /kept (process 2; kept is continuously available)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        network = f"127.{100 + os.getpid() // 250 % 100}.{os.getpid() % 250}"
        self.addresses = [f"{network}.1", f"{network}.2"]
        self.port = free_port()
        self.config = folder / "server.toml"
        self.config.touch(0o600)
        self.config.write_text(
            f'[server]\nname = "T"\nprocesses = 2\nprocess_addresses = {json.dumps(self.addresses)}\n'
            f'port = {self.port}\nstate = "{self.state}"\n'
            f'[[user]]\nname = "{USER}"\npassword = "{PASSWORD}"\n'
        )
        self.add("one", "process = 1")
        self.add("two", "process = 2")
        self.add("kept", "process = 2\ncontinuous_availability = true")
        self.process: subprocess.Popen[str] | None = None

    def add(self, name: str, keys: str = "") -> None:
        """Add a share to the configuration, with a file that has its name."""
        (self.folder / name).mkdir()
        (self.folder / name / "name").write_text(f"this is {name}")
        with self.config.open("a") as file:
            file.write(f'[[share]]\nname = "{name}"\npath = "{self.folder / name}"\n{own_user.LINE}{keys}\n')

    def start(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        with (self.folder / "log").open("a") as log:
            command = [*prefix, sys.executable, "-m", "smb3server", "--config", str(self.config)]
            variables = os.environ | dict(environment or {})
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=variables
            )
        assert self.process.stdout is not None
        assert any(line.startswith("ready:") for line in self.process.stdout), self.log()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        assert process.stdout is not None
        with process.stdout:
            return process.wait(40)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return ask(self.state / "admin.sock", command, **arguments)

    def processes(self) -> dict[int, dict[str, Any]]:
        return {entry["number"]: entry for entry in self.ask("status")["processes"]}

    def kill(self, number: int) -> int:
        """Kill a process, and return its pid."""
        pid: int = self.processes()[number]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_another(self, number: int, pid: int) -> None:
        def there() -> bool:
            try:
                return self.processes()[number]["pid"] not in (0, pid)
            except OSError:
                return False

        wait_until(there)

    def smbclient(self, share: str, commands: str, process: int = 1) -> str:
        done = subprocess.run(
            [
                *("smbclient", f"//{self.addresses[process - 1]}/{share}", "-p", str(self.port)),
                *("-U", f"{USER}%{PASSWORD}", "-c", commands),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
        )
        return done.stdout + done.stderr

    def client(self, share: str, process: int) -> PersistentShare:
        async def connect() -> MessageTransport:
            return await open_tcp(self.addresses[process - 1], self.port)

        return PersistentShare(connect, share, USER, PASSWORD, 30.0)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)
