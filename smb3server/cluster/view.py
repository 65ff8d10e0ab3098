"""What the store says of a cluster: nodes, owners, the administrator's wishes; and the events that changes of it are.

Below ``NAME/c/``: ``nodes/NODE`` and ``services/SERVICE/owner`` and ``services/SERVICE/serving`` (bound to the node's
lease; the owner is whoever may write the service's state, ``serving`` says that clients find it there),
``services/SERVICE/target`` and ``draining/NODE`` (wishes), ``events/...`` (told to all nodes). Below ``NAME/answers/``:
what nodes say to an administrator who asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from smb3server.persistence.store import Change, Store


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """A service is served by ``node`` from now on, or by nobody (None)."""

    service: str
    node: str | None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    node: str
    alive: bool


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """What a node says of itself: its addresses, for instance."""

    node: str


@dataclass(frozen=True, slots=True)
class MoveEvent:
    """A service is about to move; its clients may as well connect anew."""

    service: str
    node: str


@dataclass(frozen=True, slots=True)
class Question:
    """An administrator wants an answer: to be put at this key, with this lease."""

    key: str
    lease: int


@dataclass(frozen=True, slots=True)
class MoveClientEvent:
    """The administrator wants a client elsewhere, and to know how many registrations were told."""

    client: str
    node: str
    question: Question


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """The administrator wants to know what a node is doing."""

    question: Question


Event = ServiceEvent | NodeEvent | NodeChanged | MoveEvent | MoveClientEvent | ReportEvent


class View:
    """``apply`` every change below ``prefix`` to it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, str] = {}
        self.serving: dict[str, dict[str, Any]] = {}
        """By service: ``node``, and ``since`` when (Unix time)."""
        self.targets: dict[str, str] = {}
        self.draining: set[str] = set()

    def apply(self, change: Change) -> Event | None:
        """Take in a change; the event it means."""
        kind, _, rest = change.key.removeprefix(self.prefix).partition("/")
        value = decode(change.value)
        gone = change.value is None
        if kind == "nodes":
            return self._node(rest, None if gone else value)
        if kind == "draining":
            (self.draining.discard if gone else self.draining.add)(rest)
        elif kind == "services":
            service, _, what = rest.partition("/")
            if what == "owner":
                return self._owner(service, None if gone else str(value.get("node")))
            if what == "serving":
                return self._serving(service, None if gone else value)
            if what == "target":
                if gone:
                    self.targets.pop(service, None)
                else:
                    self.targets[service] = str(value.get("node"))
        elif kind == "events" and not gone:
            return _told(value)
        return None

    def _node(self, node: str, value: dict[str, Any] | None) -> Event | None:
        known = self.nodes.get(node)
        if value is None:
            self.nodes.pop(node, None)
            return NodeEvent(node, False) if known is not None else None
        self.nodes[node] = value
        if known is None:
            return NodeEvent(node, True)
        return NodeChanged(node) if known != value else None

    def _owner(self, service: str, node: str | None) -> Event | None:
        if node is None:
            self.owners.pop(service, None)
        else:
            self.owners[service] = node
        if service in self.serving and self.serving[service].get("node") != node:
            return self._serving(service, None)
        return None

    def _serving(self, service: str, value: dict[str, Any] | None) -> Event | None:
        before = self.served_by(service)
        if value is None:
            self.serving.pop(service, None)
        else:
            self.serving[service] = value
        after = self.served_by(service)
        return ServiceEvent(service, after) if before != after else None

    def services(self) -> set[str]:
        """All there are, whether or not somebody has them."""
        of_nodes = [info.get("services") for info in self.nodes.values()]
        return {*self.owners, *self.targets, *(name for names in of_nodes if isinstance(names, list) for name in names)}

    def served_by(self, service: str) -> str | None:
        found = self.serving.get(service)
        return None if found is None else str(found.get("node"))


def _told(value: dict[str, Any]) -> Event | None:
    kind = value.get("kind")
    if kind == "move":
        return MoveEvent(str(value.get("service")), str(value.get("node")))
    lease = value.get("lease")
    question = Question(str(value.get("answer")), lease if isinstance(lease, int) else 0)
    if kind == "move-client":
        return MoveClientEvent(str(value.get("client")), str(value.get("node")), question)
    return ReportEvent(question) if kind == "report" else None


def decode(value: bytes | None) -> dict[str, Any]:
    """Empty for what is no object."""
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def coordination_prefix(name: str) -> str:
    """Of what nodes watch, in a cluster of this name."""
    return f"{name}/c/"


def answers_prefix(name: str) -> str:
    """Of what nodes answer to administrators."""
    return f"{name}/answers/"


async def read_view(store: Store, prefix: str) -> View:
    """Raises ``StoreError``."""
    view = View(prefix)
    for kind in ("nodes/", "draining/", "services/"):
        for entry in await store.scan(prefix + kind):
            view.apply(Change(*entry))
    return view
