"""Two nodes, an etcd and the guest on one bridge, each in a network namespace of its own: a service that moves with its
address. All gone when the block ends.

::

    guest --- lab0 --+
                     +-- br0 (namespace hub)      10.77.0.0/24, the service at .100
    node a -- pa ----+
    node b -- pb ----+
    node a -- qa ---- etcd (in hub)               10.78.1.0/30
    node b -- qb ---- etcd                        10.78.2.0/30
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.store import DeletePrefix
from tools.cluster.network import enter
from tools.kernel_lab.network import NetworkError
from tools.kernel_lab.persist import Failing, Node
from tools.kernel_lab.server import ServerError
from tools.support import own_user

TAP = "lab0"
SERVICE_ADDRESS = "10.77.0.100"
NODES = ("a", "b")
TTL = 4
ETCD_PORT = 2379
START_SECONDS, TAKEOVER_SECONDS = 30.0, 60.0
SILENCE_SECONDS = 3.0
"""Seconds for which a node that has been resumed is observed."""

_CONFIGURATION = """[server]
name = "CLU"
listen = ["0.0.0.0"]
rdma = "iwarp"
log_level = "info"
[cluster]
etcd = "etcd://{etcd}:{port}"
node = "{node}"
ttl = {ttl}
unauthenticated_store = true
[[service]]
name = "files"
addresses = ["{address}/24@eth0"]
nodes = ["a", "b"]
[[share]]
name = "share"
path = "{share}"
{forced}continuous_availability = true
service = "files"
[[user]]
name = "u"
password = "pw"
"""


def _ip(*arguments: str) -> str:
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout


class Wires:
    """The namespaces and the links between them. Methods raise ``NetworkError``, also without root."""

    def __init__(self) -> None:
        self.tag = f"smb-lab-{os.getpid()}"
        self.hub = f"{self.tag}-hub"

    def space(self, node: str) -> str:
        """Return the name of the node's namespace."""
        return f"{self.tag}-{node}"

    def prefix(self, node: str = "hub") -> list[str]:
        """Return the first words of commands that run in the node's namespace."""
        return ["ip", "netns", "exec", self.space(node)]

    def up(self) -> None:
        """Make the namespaces and links."""
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "br0", "up")
        _ip("-n", self.hub, "tuntap", "add", TAP, "mode", "tap")
        _ip("-n", self.hub, "link", "set", TAP, "master", "br0", "up")
        for number, node in enumerate(NODES, 1):
            space = self.space(node)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            for end, name in ((f"p{node}", "eth0"), (f"q{node}", "eth1")):
                _ip("-n", self.hub, "link", "add", end, "type", "veth", "peer", "name", name, "netns", space)
                _ip("-n", self.hub, "link", "set", end, "up")
                _ip("-n", space, "link", "set", name, "up")
            _ip("-n", self.hub, "link", "set", f"p{node}", "master", "br0")
            _ip("-n", space, "addr", "add", f"10.77.0.{10 + number}/24", "dev", "eth0")
            _ip("-n", self.hub, "addr", "add", f"10.78.{number}.1/30", "dev", f"q{node}")
            _ip("-n", space, "addr", "add", f"10.78.{number}.2/30", "dev", "eth1")

    def down(self) -> None:
        """Remove the namespaces."""
        for space in (self.hub, *map(self.space, NODES)):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def has_service(self, node: str) -> bool:
        """Return whether the node has the service's address."""
        return f" {SERVICE_ADDRESS}/" in _ip("-n", self.space(node), "addr", "show", "dev", "eth0")

    def etcd_link(self, node: str, state: str) -> None:
        """Set the node's link to etcd ``up`` or ``down``. Clients can reach the node in both cases."""
        _ip("-n", self.hub, "link", "set", f"q{node}", state)


class Etcd:
    """One etcd member, in the hub's namespace."""

    def __init__(self, folder: Path, wires: Wires) -> None:
        if shutil.which("etcd") is None:
            raise ServerError("etcd is not installed: apt-get install -y etcd-server")
        self.folder = folder
        self._wires = wires
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client, peer = f"http://0.0.0.0:{ETCD_PORT}", "http://127.0.0.1:2380"
        command = [*self._wires.prefix(), "etcd", "--name", "m", "--data-dir", str(self.folder / "etcd")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Cluster(Failing):
    """Nodes a and b; the one that has the service is the one that fails."""

    def __init__(self, share: Path, folder: Path, wires: Wires, told: bool = True) -> None:
        """Prepare the cluster. Unless ``told``, the node that takes over knows no clients of the other one, and
        notifies none.
        """
        self.share = share
        self.wires = wires
        self.told = told
        self.nodes = {
            name: Node(
                name,
                folder,
                _CONFIGURATION.format(
                    etcd=f"10.78.{number}.1",
                    port=ETCD_PORT,
                    node=name,
                    ttl=TTL,
                    address=SERVICE_ADDRESS,
                    share=share,
                    forced=own_user.LINE,
                ),
                wires.prefix(name),
            )
            for number, name in enumerate(NODES, 1)
        }
        self.owner = ""
        """The last node that had the service."""
        self.failed = ""

    @property
    def alive(self) -> bool:
        return all(node.alive for node in self.nodes.values())

    def start(self) -> None:
        """Start etcd and both nodes. Raises ``ServerError``."""
        for node in self.nodes.values():
            node.start()
        self.owner = self._served_by(NODES, START_SECONDS)

    def _served_by(self, among: tuple[str, ...], limit: float) -> str:
        deadline = time.monotonic() + limit
        while True:
            for name in among:
                if self.wires.has_service(name):
                    return name
            if time.monotonic() > deadline:
                raise ServerError(f"no node of {', '.join(among)} has the service after {limit:.0f} s")
            time.sleep(0.05)

    def fail(self, how: str) -> None:
        self.failed = self._served_by(NODES, START_SECONDS)
        if how == "kill":
            self.nodes[self.failed].kill()
        elif how == "stop":
            self.nodes[self.failed].process.send_signal(signal.SIGSTOP)
        elif how == "cut":
            self.wires.etcd_link(self.failed, "down")
        else:
            raise ServerError(f"a node cannot {how}")
        if not self.told:
            self._forget_clients()

    def _forget_clients(self) -> None:
        """Delete the records of the service's clients from the store, long before another node takes over."""

        async def body() -> None:
            store = EtcdStore([f"http://127.0.0.1:{ETCD_PORT}"])
            try:
                await store.commit([DeletePrefix("smb3server/state/files/peers/")])
            finally:
                await store.close()

        def run() -> None:
            enter(self.wires.hub)
            asyncio.run(body())

        # A network namespace belongs to a thread.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def recover(self, how: str) -> dict[str, float]:
        """Wait until the other node has the address; it takes over without help."""
        start = time.monotonic()
        (other,) = (name for name in NODES if name != self.failed)
        self.owner = self._served_by((other,), TAKEOVER_SECONDS)
        return {f"node {other} had the address after": time.monotonic() - start}

    def settle(self, how: str) -> None:
        """Let the failed node return: it must not speak as the service, and must become a member again."""
        node = self.nodes[self.failed]
        with self._listening() as said:
            if how == "kill":
                node.start()
            elif how == "stop":
                node.process.send_signal(signal.SIGCONT)
            else:
                self.wires.etcd_link(self.failed, "up")
            time.sleep(SILENCE_SECONDS)
        if said:
            raise ServerError(f"node {self.failed} still spoke as the service: {said[0]}")
        if self.wires.has_service(self.failed) or not self.wires.has_service(self.owner):
            raise ServerError(f"node {self.failed} has the address again")
        report = self._status(node)
        if report["sessions"] or not node.alive:
            raise ServerError(f"node {self.failed} still has {len(report['sessions'])} sessions")

    @contextlib.contextmanager
    def _listening(self) -> Iterator[list[str]]:
        """Capture what the failed node sends with the service's address; the list is filled at the end of the block."""
        said: list[str] = []
        command = [*self.wires.prefix(), "tcpdump", "-Z", "root", "-i", f"p{self.failed}", "-Q", "in", "-l", "-n"]
        command += ["src", "host", SERVICE_ADDRESS, "or", "arp", "src", "host", SERVICE_ADDRESS]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("listening"):
                    break
            try:
                yield said
            finally:
                process.terminate()
                said += filter(None, process.communicate()[0].splitlines())

    def _status(self, node: Node) -> dict[str, list[object]]:
        path = node.state / "asked.json"
        node.report(path)
        found: dict[str, list[object]] = json.loads(path.read_text())
        return found

    def report(self, path: Path) -> None:
        self.nodes[self.owner].report(path)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()


@contextlib.contextmanager
def running_cluster(share: Path, folder: Path, told: bool = True) -> Iterator[Cluster]:
    """Run a cluster that serves ``share`` until the block ends; ``told`` is as for ``Cluster``.

    Raises ``ServerError`` and ``NetworkError``.
    """
    wires = Wires()
    etcd = Etcd(folder, wires)
    cluster = Cluster(share, folder, wires, told)
    try:
        wires.up()
        etcd.start()
        cluster.start()
        yield cluster
    finally:
        for node in cluster.nodes.values():
            node.kill()
        etcd.stop()
        wires.down()
