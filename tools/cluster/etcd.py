"""A private etcd: members are processes on loopback, or each in a network namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tools.cluster.certificates import Authority
from tools.cluster.network import enter
from tools.support.ports import free_ports

CLIENT_PORT, PEER_PORT = 2379, 2380
"""Ports of members that have an address to themselves."""
_START_SECONDS = 30
_ROOM = 2 << 30
"""Bytes that a file system in memory must have free."""


class EtcdError(Exception):
    """etcd is not installed, or did not start."""


def why_not() -> str | None:
    """Return why etcd cannot run here, or None."""
    return None if shutil.which("etcd") else "etcd is not installed (Debian: etcd-server)"


def _memory() -> Path | None:
    """Return a folder in memory if there is room for etcd's files, or None."""
    found = Path("/dev/shm")
    try:
        state = os.statvfs(found)
    except OSError:
        return None
    return found if os.access(found, os.W_OK) and state.f_bavail * state.f_frsize >= _ROOM else None


@dataclass(slots=True)
class Member:
    """One etcd member."""

    client: str
    """HOST:PORT."""
    peer: str
    prefix: list[str] = field(default_factory=list)
    """First words of the member's command: ip netns exec and the namespace's name."""


def _is_healthy(address: str) -> bool:
    """Return whether a member says that it has a leader."""
    connection = HTTPConnection(address, timeout=1)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def local_members(count: int) -> list[Member]:
    """Return members on loopback."""
    ports = free_ports(2 * count)
    return [Member(f"127.0.0.1:{ports[n]}", f"127.0.0.1:{ports[count + n]}") for n in range(count)]


def member_at(address: str, prefix: Sequence[str]) -> Member:
    """Return a member in a namespace that has this address."""
    return Member(f"{address}:{CLIENT_PORT}", f"{address}:{PEER_PORT}", list(prefix))


class Etcd:
    """A private etcd. Call ``start`` and then ``stop``, once; single members can be killed and started by number.

    Its data lies in memory if there is room: on a busy disk members lose their leader. Logs are in ``folder``.
    """

    def __init__(
        self, folder: Path, members: Sequence[Member], tls: Authority | None = None, more: Sequence[str] = ()
    ) -> None:
        """Prepare for ``start``.

        With ``tls``, clients use TLS with certificates of this authority, and members must be on loopback. ``more`` are
        options of the command.
        """
        self._tls = tls
        self._more = list(more)
        self._health = [f"127.0.0.1:{port}" for port in free_ports(len(members))] if tls is not None else []
        """Addresses at which members report their health without TLS."""
        self.folder = folder
        self.members = list(members)
        self.data = folder
        self._in_memory = _memory()
        if self._in_memory is not None:
            self.data = Path(tempfile.mkdtemp(prefix="etcd-", dir=self._in_memory))
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * len(members)

    @property
    def url(self) -> str:
        """The cluster's URL as nodes take it."""
        return ("etcd://" if self._tls is None else "etcds://") + ",".join(member.client for member in self.members)

    def start(self, member: int | None = None, wait: bool = True) -> None:
        """Start one member or all. With ``wait``, return when it is healthy, which needs a quorum. Raises
        ``EtcdError``.
        """
        wanted = range(len(self.members)) if member is None else [member]
        for index in wanted:
            self._start(index)
        for index in wanted if wait else ():
            self._wait(index)

    def _start(self, index: int) -> None:
        cluster = ",".join(f"m{number}=http://{entry.peer}" for number, entry in enumerate(self.members))
        member = self.members[index]
        client, peer = f"http://{member.client}", f"http://{member.peer}"
        more = list(self._more)
        if self._tls is not None:
            client = f"https://{member.client}"
            pair = self._tls.issue(f"etcd-{index}")
            more += ["--cert-file", str(pair.cert), "--key-file", str(pair.key), "--client-cert-auth",
                     "--trusted-ca-file", str(self._tls.ca), "--listen-metrics-urls",
                     f"http://{self._health[index]}"]  # fmt: skip
        try:
            with self._log(index).open("ab") as log:
                self.processes[index] = subprocess.Popen(
                    [*member.prefix, "etcd", "--name", f"m{index}", "--data-dir", str(self.data / f"etcd-{index}"),
                     "--listen-client-urls", client, "--advertise-client-urls", client,
                     "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                     "--initial-cluster", cluster, "--logger", "zap", *more],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
        except FileNotFoundError as error:
            raise EtcdError(why_not() or str(error)) from error

    def _log(self, index: int) -> Path:
        return self.folder / f"etcd-{index}.log"

    def _wait(self, index: int) -> None:
        """Wait on a thread of its own: it enters the member's namespace, where there is one."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._wait_there, index).result()

    def _wait_there(self, index: int) -> None:
        member = self.members[index]
        if member.prefix:
            enter(member.prefix[-1])
        address = self._health[index] if self._health else member.client
        deadline = time.monotonic() + _START_SECONDS
        while not _is_healthy(address):
            if time.monotonic() > deadline:
                raise EtcdError(f"etcd does not start: {self._log(index).read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self, member: int) -> None:
        """End one member with SIGKILL."""
        process, self.processes[member] = self.processes[member], None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End all members."""
        for member in range(len(self.processes)):
            self.kill(member)
        if self._in_memory is not None:
            shutil.rmtree(self.data, ignore_errors=True)
