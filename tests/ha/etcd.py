"""An etcd of the test's own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Etcd:
    """One member, or several; without fsync unless the test is about the disk."""

    def __init__(self, folder: Path, members: int = 1, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        if shutil.which("etcd") is None:
            pytest.skip("etcd is not installed (Debian: etcd-server)")
        self.folder = folder
        ports = free_ports(2 * members)
        self.clients = [f"{address}:{port}" for port in ports[:members]]
        self._peers = [f"http://{address}:{port}" for port in ports[members:]]
        self._prefix = list(prefix)
        """What the command begins with: ip netns exec ..."""
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * members

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(self.clients)

    def start(self, member: int | None = None) -> Etcd:
        wanted = range(len(self.clients)) if member is None else [member]
        for index in wanted:
            cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(self._peers))
            client = f"http://{self.clients[index]}"
            log = (self.folder / f"etcd-{index}.log").open("ab")
            self.processes[index] = subprocess.Popen(
                [*self._prefix, "etcd", "--name", f"m{index}", "--data-dir", str(self.folder / f"etcd-{index}"),
                 "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", self._peers[index], "--initial-advertise-peer-urls", self._peers[index],
                 "--initial-cluster", cluster, "--heartbeat-interval", "50", "--election-timeout", "500",
                 "--logger", "zap"],
                stdout=log, stderr=log,
            )  # fmt: skip
            log.close()
        for index in wanted:
            self._wait(index)
        return self

    def _wait(self, index: int) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            url = f"http://{self.clients[index]}/health"
            found = subprocess.run([*self._prefix, "curl", "-s", url], capture_output=True, check=False, timeout=5)
            if b'"true"' in found.stdout:
                return
            time.sleep(0.05)
        raise AssertionError(f"etcd does not start: {(self.folder / f'etcd-{index}.log').read_text()[-2000:]}")

    def kill(self, member: int) -> None:
        process, self.processes[member] = self.processes[member], None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        for member in range(len(self.processes)):
            self.kill(member)
