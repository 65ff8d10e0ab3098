"""The state of a cluster, as the store has it: nodes, owners and the administrator's requests; and the events that
changes of it cause.

Keys below ``NAME/c/``:

- ``nodes/NODE``: a living node. Bound to its lease.
- ``services/SERVICE/owner``: the node that may write the service's state. Bound to its lease.
- ``services/SERVICE/serving``: the node at which clients can reach the service. Bound to its lease.
- ``services/SERVICE/last``: the node that had the service last, until it has given it up in good order. It is fenced
  before any other node takes the service.
- ``services/SERVICE/fencing``: the node that the owner is fencing. Bound to the owner's lease.
- ``services/SERVICE/storage/SHARE``: the mark of a share's file system (``storage``).
- ``services/SERVICE/target``, ``draining/NODE``: requests of the administrator.
- ``events/...``: events for all nodes.

Keys below ``NAME/answers/``: the nodes' answers to questions of an administrator.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from smb3server.persistence.store import Change, Store


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """A service is now served by ``node``, or by no node (None)."""

    service: str
    node: str | None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node has joined (``alive``), or is no longer a member."""

    node: str
    alive: bool


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node has published new information about itself, for instance its addresses."""

    node: str


@dataclass(frozen=True, slots=True)
class MoveEvent:
    """A service is about to move to ``node``. Its clients may reconnect now."""

    service: str
    node: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question of an administrator. The answer goes to this key, bound to this lease."""

    key: str
    lease: int


@dataclass(frozen=True, slots=True)
class MoveClientEvent:
    """The administrator requests that a client moves to ``node``, and asks how many registrations were notified."""

    client: str
    node: str
    question: Question


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """The administrator asks for a report of each node."""

    question: Question


Event = ServiceEvent | NodeEvent | NodeChanged | MoveEvent | MoveClientEvent | ReportEvent


class View:
    """The state of a cluster. ``apply`` every change below ``prefix`` to it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: dict[str, dict[str, Any]] = {}
        """The living nodes, with the information that they publish about themselves."""
        self.owners: dict[str, str] = {}
        """By service: the node that owns it."""
        self.serving: dict[str, dict[str, Any]] = {}
        """By service: ``node``, and ``since`` when (Unix time)."""
        self.targets: dict[str, str] = {}
        """By service: the node that the administrator requests for it."""
        self.last: dict[str, str] = {}
        """By service: the node that had it last and did not give it up, or that has it."""
        self.fencing: dict[str, dict[str, Any]] = {}
        """By service: ``node`` that is being fenced before the service is taken over, ``since`` when (Unix time), and
        why that failed so far (``problem``)."""
        self.marks: dict[str, dict[str, str]] = {}
        """By service: the marks of its shares' file systems, by ``storage.key_of``."""
        self.draining: set[str] = set()
        """Nodes that shall have no service."""

    def apply(self, change: Change) -> Event | None:
        """Apply a change. Return the event that it causes, if any."""
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
            self._note(service, what, None if gone else value)
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

    def _note(self, service: str, what: str, value: dict[str, Any] | None) -> None:
        """Apply a change that causes no event."""
        kind, _, share = what.partition("/")
        if kind == "last":
            self.last.pop(service, None)
            if value is not None:
                self.last[service] = str(value.get("node"))
        elif kind == "fencing":
            self.fencing.pop(service, None)
            if value is not None:
                self.fencing[service] = value
        elif kind == "storage":
            marks = self.marks.setdefault(service, {})
            marks.pop(share, None)
            if value is not None:
                marks[share] = str(value.get("mark"))

    def lacks_storage(self, node: str, service: str) -> str:
        """Return why a node cannot reach the file systems of a service; empty if it can, as far as it has said."""
        missing = self.nodes.get(node, {}).get("storage_missing")
        return str(missing.get(service) or "") if isinstance(missing, dict) else ""

    def services(self) -> set[str]:
        """Return all services, with or without an owner."""
        of_nodes = [info.get("services") for info in self.nodes.values()]
        return {*self.owners, *self.targets, *(name for names in of_nodes if isinstance(names, list) for name in names)}

    def served_by(self, service: str) -> str | None:
        """Return the node that serves a service, None if there is no such node."""
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
    """Parse a JSON object. Return an empty one for any other value."""
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def coordination_prefix(name: str) -> str:
    """Return the prefix of the keys that the nodes of a cluster watch. ``name``: the cluster's."""
    return f"{name}/c/"


def answers_prefix(name: str) -> str:
    """Return the prefix of the nodes' answers to administrators. ``name``: the cluster's."""
    return f"{name}/answers/"


async def read_view(store: Store, prefix: str) -> View:
    """Read the state of a cluster, except events. Raises ``StoreError``."""
    view = View(prefix)
    for kind in ("nodes/", "draining/", "services/"):
        for entry in await store.scan(prefix + kind):
            view.apply(Change(*entry))
    return view


EVENT_INTERVAL = 15.0
"""Seconds between two calls of ``advance``. An event stays valid for one to two intervals."""


def stamped(event: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the event with its number and the store's present ``version``."""
    return {**event, "number": secrets.token_hex(8), "after": version}


class Freshness:
    """The recent events of one node, so that a copy of an old event has no effect.

    An event has a random number that cannot be guessed, and the store's version from just before it was stored. Nodes
    remember the numbers of recent events, and ignore all older ones. The store's version serves as the clock: it only
    grows, and is the same for all nodes. Before the first ``advance`` no event is new.
    """

    def __init__(self) -> None:
        self._horizon: int | None = None
        """The store's version before which all events are old."""
        self._next = 0
        """The next horizon."""
        self._seen: dict[str, int] = {}
        """The version of each event seen since the horizon, by number."""

    @property
    def started(self) -> bool:
        """Whether ``advance`` has been called."""
        return self._horizon is not None

    def advance(self, version: int) -> None:
        """Move the horizon. ``version``: the store's present one.

        After the first call, all events from before it are old."""
        self._horizon = version if self._horizon is None else self._next
        self._next = version
        horizon = self._horizon
        self._seen = {number: after for number, after in self._seen.items() if after >= horizon}

    def is_new(self, event: dict[str, Any]) -> bool:
        """Return whether the event is new, and remember it: the next call returns False."""
        number, after = event.get("number"), event.get("after")
        if self._horizon is None or not isinstance(number, str) or not isinstance(after, int):
            return False
        if after < self._horizon or number in self._seen:
            return False
        self._seen[number] = after
        return True
