"""A cluster in network namespaces: etcd members e1, e2, ..., nodes and a client. Virtual addresses move between the
nodes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from smb3server.cli.cluster.admin import Admin
from smb3server.net.store_access import StoreAccess
from smb3server.persistence.etcd import open_store
from smb3server.persistence.store import StoreError
from smb3server.settings.cluster import DEFAULT_NAME
from tools.cluster import etcd, network
from tools.cluster.etcd import Etcd, member_at
from tools.cluster.network import INTERFACE, NETWORK, NETWORK6, Network
from tools.cluster.node import PROGRAM, Node, admin
from tools.support import own_user

T = TypeVar("T")

CLIENT = "cli"
"""The member in which clients run."""
_ETCD_PATIENCE = 20.0
PORT = 445
"""The same on all nodes, since each has its own namespace."""
SERVICE, SHARE = "one", "data"
VIRTUAL, VIRTUAL6 = f"{NETWORK}.100", f"{NETWORK6}100"
"""Addresses of the default service."""


class LabError(Exception):
    """The expected state was not reached in time."""


def why_not() -> str | None:
    """Return why such a cluster cannot run here, or None."""
    return etcd.why_not() or network.why_not()


def service_section(name: str, number: int, nodes: Sequence[str]) -> str:
    """Return the section of a service with the addresses 10.77.0.``number`` and fd77::``number``."""
    addresses = [f"{NETWORK}.{number}/24@{INTERFACE}", f"{NETWORK6}{number}/64@{INTERFACE}"]
    return f'[[service]]\nname = "{name}"\naddresses = {json.dumps(addresses)}\nnodes = {json.dumps(list(nodes))}\n'


def share_section(name: str, path: Path, service: str, available: bool = True) -> str:
    """Return the section of a share. With ``available`` it is continuously available."""
    return (
        f'[[share]]\nname = "{name}"\npath = "{path}"\n{own_user.LINE}service = "{service}"\n'
        f"continuous_availability = {json.dumps(available)}\n"
    )


class ClusterLab:
    """A context manager: entering starts the cluster and waits until the services are served; leaving removes
    everything.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str] = ("a", "b"),
        sections: str | None = None,
        *,
        etcd_members: int = 1,
        ttl: int = 2,
        options: str = "",
        cluster_options: str = "",
        program: Sequence[str] = PROGRAM,
        extra_members: Sequence[str] = (),
    ) -> None:
        """Prepare the cluster.

        ``folder`` stands for the shared file system. ``sections`` holds services, shares and more for every node's
        configuration; the default is the service "one" with the share "data" on the folder's "share". ``options``,
        ``cluster_options`` and ``program`` are those of ``Node``.
        """
        self.folder = folder
        self.share = folder / "share"
        self.share.mkdir(exist_ok=True)
        stores = [f"e{number}" for number in range(1, etcd_members + 1)]
        self.network = Network([*stores, *nodes, CLIENT, *extra_members])
        self.etcd = Etcd(
            folder, [member_at(self.network.address(store), self.network.prefix(store)) for store in stores]
        )
        if sections is None:
            sections = service_section(SERVICE, 100, nodes) + share_section(SHARE, self.share, SERVICE)
        self.nodes = {
            name: Node(
                folder,
                name,
                self.etcd.url,
                sections,
                port=PORT,
                listen=("0.0.0.0", "::"),
                prefix=self.network.prefix(name),
                ttl=ttl,
                options=options,
                cluster_options=cluster_options,
                program=program,
            )
            for name in nodes
        }

    def __enter__(self) -> ClusterLab:
        try:
            self.network.up()
            self.etcd.start()
            for node in self.nodes.values():
                node.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop everything."""
        for node in self.nodes.values():
            node.kill()
        self.etcd.stop()
        self.network.down()

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs into ``folder``."""
        for path in self.folder.glob("*.log"):
            shutil.copy(path, folder)

    def admin(self, *arguments: str) -> str:
        """Return the output of ``smb3server cluster``. Raises ``LabError`` with its error text."""
        done = admin(self.etcd.url, *arguments, prefix=self.network.prefix(CLIENT))
        if done.returncode:
            raise LabError(f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
        return done.stdout

    def ask(self, question: Callable[[Admin], Awaitable[T]]) -> T:
        """Ask the cluster without a process of its own; repeat while etcd has no leader.

        Raises ``AdminError``, and ``StoreError`` if etcd does not recover.
        """
        answers: list[T] = []

        async def body() -> None:
            store = open_store(self.etcd.url, DEFAULT_NAME, StoreAccess())
            deadline = time.monotonic() + _ETCD_PATIENCE
            try:
                while not answers:
                    try:
                        answers.append(await question(Admin(store, DEFAULT_NAME)))
                    except StoreError:
                        if time.monotonic() > deadline:
                            raise
                        await asyncio.sleep(0.2)
            finally:
                await store.close()

        self.network.inside(CLIENT, body)
        return answers[0]

    def served(self) -> dict[str, str | None]:
        """Return which node serves each service."""
        view = self.ask(lambda admin: admin.view())
        return {name: view.served_by(name) for name in view.services()}

    def up(self) -> set[str]:
        """Return the nodes that are members."""
        return set(self.ask(lambda admin: admin.view()).nodes)

    def gather(self, node: str, services: Sequence[str]) -> None:
        """Start every etcd member and node, end all draining, and move these services to ``node``."""
        for member, process in enumerate(self.etcd.processes):
            if process is None:
                self.etcd.start(member)
        for entry in self.nodes.values():
            if entry.process is None:
                entry.start()
        self.wait_until(lambda: self.up() == set(self.nodes), "all nodes up")

        async def move(admin: Admin) -> None:
            for draining in (await admin.view()).draining:
                await admin.undo_drain(draining)
            for service in services:
                await admin.move(service, node, 30)

        self.ask(move)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = 40.0) -> None:
        """Wait until ``condition`` holds. Raises ``LabError`` after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{node.name}: {node.log()[-1500:]}" for node in self.nodes.values())
                raise LabError(f"not {what} within {timeout:g} s\n{logs}")
            time.sleep(0.05)

    def wait_for_service(self, service: str, node: str, timeout: float = 20.0) -> None:
        """Wait until ``node`` serves ``service``. Raises ``LabError`` after ``timeout`` seconds."""
        self.wait_until(lambda: self.served().get(service) == node, f"{service} on {node}", timeout)

    def wait_for_address(self, node: str, address: str = VIRTUAL, timeout: float = 20.0) -> None:
        """Wait until a node has the address on its interface."""
        self.wait_until(lambda: address in self.network.addresses(node), f"{address} on {node}", timeout)
