"""A real server process that tests may kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from smb3server.client.protocol.transports import open_tcp
from smbdirect.message_transport import MessageTransport
from tests.lab.persistent import PersistentShare
from tools.support import own_user
from tools.support.ports import free_port

USER, PASSWORD = "u", "pw"


class ServerProcess:
    """Shares ``folder``/share as "ca" (continuously available) and as "plain". Keeps its port over restarts."""

    def __init__(self, folder: Path, state: Path | None = None) -> None:
        self.folder = folder
        self.share = folder / "share"
        self.share.mkdir(exist_ok=True)
        self.port = free_port()
        self.config = folder / "server.toml"
        self.config.touch(0o600)
        self.config.write_text(
            f'[server]\nname = "T"\nlisten = ["127.0.0.1"]\nport = {self.port}\nstate = "{state or folder / "state"}"\n'
            f'[[share]]\nname = "ca"\npath = "{self.share}"\n{own_user.LINE}continuous_availability = true\n'
            f'[[share]]\nname = "plain"\npath = "{self.share}"\n{own_user.LINE}'
            f'[[user]]\nname = "{USER}"\npassword = "{PASSWORD}"\n'
        )
        self.process: subprocess.Popen[str] | None = None
        self.prefix: list[str] = []
        """A command that runs the server."""

    def start(self) -> None:
        log = (self.folder / "server.log").open("a")
        self.process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "smb3server", "--config", str(self.config)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout is not None
        deadline = time.monotonic() + 30
        for line in self.process.stdout:
            if line.startswith("ready"):
                return
            assert time.monotonic() < deadline
        raise AssertionError((self.folder / "server.log").read_text()[-3000:])

    def kill(self, number: int = signal.SIGKILL) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(20)
            if process.stdout is not None:
                process.stdout.close()

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def restart(self) -> None:
        self.kill()
        self.start()

    async def connect(self) -> MessageTransport:
        return await open_tcp("127.0.0.1", self.port)

    def client(self, share: str = "ca", patience: float = 30.0) -> PersistentShare:
        return PersistentShare(self.connect, share, USER, PASSWORD, patience)


Body = Callable[[ServerProcess, PersistentShare], Awaitable[None]]


def run(server: ServerProcess, body: Body) -> None:
    async def main() -> None:
        client = server.client()
        async with asyncio.timeout(60):
            try:
                await body(server, client)
            finally:
                await client.close()

    asyncio.run(main())
