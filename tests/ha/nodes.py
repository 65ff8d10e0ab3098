"""Nodes of a cluster as processes, on one machine or in network namespaces."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from smb3server.client.persistent import PersistentShare
from smb3server.client.transports import open_tcp
from smbdirect.message_transport import MessageTransport
from tests.ha.etcd import free_ports
from tests.ha.process import PASSWORD, USER

TTL = 2


class Node:
    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        services: str,
        port: int = 0,
        listen: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.folder = folder
        self.port = port or free_ports(1)[0]
        self.prefix = list(prefix)
        """What the command begins with: ip netns exec ..."""
        self.config = folder / f"{name}.toml"
        self.config.write_text(
            f'[server]\nname = "CLU"\nlisten = ["{listen}"]\nport = {self.port}\nstate = "{folder / name}"\n'
            f'log_level = "info"\n[cluster]\nttl = {TTL}\n{services}'
            f'[[user]]\nname = "{USER}"\npassword = "{PASSWORD}"\n'
        )
        self._arguments = ["--config", str(self.config), "--cluster", url, "--node", name]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        log = (self.folder / f"{self.name}.log").open("a")
        self.process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "smb3server", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready"):
                return
        raise AssertionError(self.log())

    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()

    async def connect(self) -> MessageTransport:
        return await open_tcp("127.0.0.1", self.port)


class AnyNode:
    """Connects to the nodes in turn: a client that knows them all."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.next = 0

    async def __call__(self) -> MessageTransport:
        self.next += 1
        return await self.nodes[self.next % len(self.nodes)].connect()


def client(nodes: Sequence[Node], share: str = "data", patience: float = 30.0) -> PersistentShare:
    return PersistentShare(AnyNode(nodes), share, USER, PASSWORD, patience)


def admin(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smb3server", "cluster", "--cluster", url, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def seconds_since(start: float) -> float:
    return time.monotonic() - start
