"""Nodes of a cluster as processes on loopback, and clients that know all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smb3server.client.protocol.transports import open_tcp
from smbdirect.message_transport import MessageTransport
from tests.lab.persistent import PersistentShare
from tests.lab.served import in_process
from tools.cluster import node
from tools.cluster.node import PASSWORD, USER, admin
from tools.support.ports import free_port

__all__ = ["PASSWORD", "TTL", "USER", "AnyNode", "Node", "admin", "asked", "client", "seconds_since"]

TTL = 2


class Node(node.Node):
    def __init__(self, folder: Path, name: str, url: str, services: str, ttl: int = TTL, **more: Any) -> None:
        super().__init__(folder, name, url, services, port=free_port(), ttl=ttl, **more)

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


def asked(url: str, *arguments: str) -> tuple[int, str, str]:
    """Status, output and errors of ``smb3server cluster``, in this process."""
    done = in_process("cluster", "--cluster", url, *arguments)
    return done.returncode, done.stdout, done.stderr


def seconds_since(start: float) -> float:
    return time.monotonic() - start
