"""Registrations, their notifications and the calls that wait for these. [MS-SWN 3.1.1, 3.1.4, 3.1.5]

There is no I/O, and no clock: callers pass the time as ``now``, in seconds.
"""

from __future__ import annotations

import heapq
import ipaddress
import secrets
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from smb3server.wire.address import Address
from witness.cluster import ClientMove, ClusterEvents, Event, IpChange, ResourceChanged, ServiceMove, ShareMove
from witness.ndr import (
    V1,
    V2,
    InterfaceState,
    MessageType,
    RegisterFlags,
    Win32,
    notification_stub,
    pack_address_list,
    pack_resource_change,
)

MAX_NAME = 1024
"""Characters of any string in a registration."""


class WitnessError(Exception):
    """A call fails with this return value."""

    def __init__(self, status: Win32) -> None:
        super().__init__(status.name)
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a Witness service."""

    registrations: int = 65536
    registrations_per_owner: int = 256
    waiters: int = 4
    """WitnessrAsyncNotify calls that may wait for one registration."""
    queue: int = 32
    """Notifications that one registration keeps for its client. When there are more, the oldest is dropped."""
    default_keepalive: float = 120.0
    """Seconds, for a KeepAliveTimeout of 0."""
    max_keepalive: float = 3600.0
    """Seconds. KeepAliveTimeout is a maximum: a server may answer earlier. [MS-SWN 3.1.4.5]"""
    unused: float = 300.0
    """Seconds without a WitnessrAsyncNotify after which a registration is removed. [MS-SWN 3.1.5.1]"""


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification, encoded once for all registrations that get it."""

    kind: MessageType
    stub: bytes
    """The encoded answer of WitnessrAsyncNotify."""
    about: Hashable
    """Its subject. It replaces queued notifications of the same kind and subject; None replaces nothing."""


Answer = Callable[[Win32, Notification | None], None]
"""Answers a call, with a return value and with the notification if there is one."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A WitnessrAsyncNotify call that waits."""

    answer: Answer
    deadline: float | None
    """When the keepalive expires; None in version 1."""


@dataclass(slots=True, eq=False)
class Registration:
    """A WitnessRegistration. [MS-SWN 3.1.1.1]"""

    key: bytes
    """RegistrationKey: the UUID of the context handle."""
    version: int
    net_name: str
    share_name: str | None
    ip_address: Address
    client: str
    """WitnessClientName."""
    flags: int
    keepalive: float | None
    """Seconds; None in version 1."""
    owner: Hashable
    """The only one that may use the handle."""
    user: str
    """The user's name, for displays."""
    last_use: float
    # Invariant: unless None, ``Registrations._timers`` has an entry with this time and the registration's key.
    scheduled: float | None = None
    """When its next timer fires."""
    # Invariant: ``waiters`` or ``queue`` is empty.
    waiters: deque[Waiter] = field(default_factory=deque)
    queue: deque[Notification] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of WitnessrRegister and WitnessrRegisterEx; None for a null pointer."""

    version: int
    net_name: str | None
    ip_address: str | None
    client: str | None
    extended: bool = False
    """Whether it is WitnessrRegisterEx. The following fields have no meaning otherwise."""
    share_name: str | None = None
    flags: int = 0
    keepalive: int = 0
    """Seconds."""


class Registrations:
    """The WitnessRegistrationList. [MS-SWN 3.1.1]

    ``owner``, a parameter of several methods, is the only one that may use a handle. Its registrations end with it."""

    def __init__(self, cluster: ClusterEvents, limits: Limits | None = None) -> None:
        """``limits``: None means the defaults."""
        self.limits = limits or Limits()
        self.notifications_sent = 0
        self.notifications_dropped = 0
        self._cluster = cluster
        # Invariant: a registration is in all four tables from ``register`` to ``_remove``. No inner table is empty.
        self._by_key: dict[bytes, Registration] = {}
        self._by_name: dict[str, dict[bytes, Registration]] = {}
        """By case-folded net name."""
        self._by_client: dict[str, dict[bytes, Registration]] = {}
        """By case-folded client name."""
        self._by_owner: dict[Hashable, dict[bytes, Registration]] = {}
        self._timers: list[tuple[float, bytes]] = []
        """A heap of (when, key), with at most a few entries for each registration.

        An entry is void unless its time is the ``scheduled`` of its registration."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Registration]:
        return iter(list(self._by_key.values()))

    # Calls [MS-SWN 3.1.4]

    def register(self, request: Request, owner: Hashable, user: str, now: float) -> bytes:
        """Make a registration, and return its key. Raises ``WitnessError``. [MS-SWN 3.1.4.2, 3.1.4.5]

        Any address will do: it must be that of an interface only if there are shares of the type STYPE_CLUSTER_SOFS.
        This server has none. ``user``: the user's name, for displays."""
        if request.version != (V2 if request.extended else V1):
            raise WitnessError(Win32.REVISION_MISMATCH)
        net_name, client = _text(request.net_name), _text(request.client)
        try:
            address = ipaddress.ip_address(_text(request.ip_address))
        except ValueError:
            raise WitnessError(Win32.INVALID_PARAMETER) from None
        known = self._known_name(net_name)
        if request.flags not in (RegisterFlags.NONE, RegisterFlags.IP_NOTIFICATION):
            raise WitnessError(Win32.INVALID_PARAMETER)
        share = self._known_share(known, request.share_name)
        limits = self.limits
        if len(self._by_key) >= limits.registrations or (
            len(self._by_owner.get(owner, ())) >= limits.registrations_per_owner
        ):
            raise WitnessError(Win32.NO_SYSTEM_RESOURCES)
        keepalive = None
        if request.extended:
            keepalive = min(float(request.keepalive) or limits.default_keepalive, limits.max_keepalive)
        key = secrets.token_bytes(16)
        entry = Registration(
            key, request.version, known, share, address, client, request.flags, keepalive, owner, user, now
        )
        self._by_key[key] = entry
        self._by_name.setdefault(known.casefold(), {})[key] = entry
        self._by_client.setdefault(client.casefold(), {})[key] = entry
        self._by_owner.setdefault(owner, {})[key] = entry
        self._schedule(entry)
        return key

    def _known_name(self, given: str) -> str:
        """Return the cluster's spelling of a net name, of which clients may send the first label or a qualified form.

        Raises ``WitnessError`` if there is no such name."""
        wanted = given.casefold()
        names = self._cluster.net_names()
        for name in names:
            if name.casefold() == wanted:
                return name
        for name in names:
            if name.casefold().partition(".")[0] == wanted.partition(".")[0]:
                return name
        raise WitnessError(Win32.INVALID_PARAMETER)

    def _known_share(self, net_name: str, given: str | None) -> str | None:
        """Return the cluster's spelling of a share, None if it has no such share: without shares of the type
        STYPE_CLUSTER_SOFS, the name is ignored.

        Raises INVALID_STATE if the net name has no shares at all. [MS-SWN 3.1.4.5]"""
        if given is None:
            return None
        shares = self._cluster.shares(net_name)
        if not shares:
            raise WitnessError(Win32.INVALID_STATE)
        return next((share for share in shares if share.casefold() == given.casefold()), None)

    def unregister(self, key: bytes, owner: Hashable) -> None:
        """End a registration, and answer the calls that wait for it. Raises ``WitnessError``. [MS-SWN 3.1.4.3]"""
        entry = self._by_key.get(key)
        if entry is None or entry.owner != owner:
            raise WitnessError(Win32.INVALID_PARAMETER)
        self._remove(entry)

    def wait(self, key: bytes, owner: Hashable, now: float, answer: Answer) -> Waiter | None:
        """Wait for the next notification. Raises ``WitnessError``. [MS-SWN 3.1.4.4]

        If one is queued, call ``answer`` at once and return None. Otherwise ``answer`` is called later, unless
        ``forget`` is called first with the result."""
        entry = self._by_key.get(key)
        if entry is None or entry.owner != owner:
            raise WitnessError(Win32.NOT_FOUND)
        entry.last_use = now
        if entry.queue:
            self._answer(answer, entry.queue.popleft())
            return None
        if len(entry.waiters) >= self.limits.waiters:
            raise WitnessError(Win32.NO_SYSTEM_RESOURCES)
        waiter = Waiter(answer, now + entry.keepalive if entry.keepalive is not None else None)
        entry.waiters.append(waiter)
        self._schedule(entry)
        return waiter

    def forget(self, key: bytes, waiter: Waiter, now: float) -> None:
        """Stop waiting: the call was cancelled, or its connection was lost."""
        entry = self._by_key.get(key)
        if entry is not None and waiter in entry.waiters:
            entry.waiters.remove(waiter)
            entry.last_use = now
            self._schedule(entry)

    def owner_gone(self, owner: Hashable) -> int:
        """End the registrations of an owner: the rundown of its context handles. Return how many. [C706 5.1.6]"""
        found = list(self._by_owner.get(owner, {}).values())
        for entry in found:
            self._remove(entry)
        return len(found)

    def _remove(self, entry: Registration) -> None:
        del self._by_key[entry.key]
        _discard(self._by_name, entry.net_name.casefold(), entry.key)
        _discard(self._by_client, entry.client.casefold(), entry.key)
        _discard(self._by_owner, entry.owner, entry.key)
        waiters, entry.waiters = entry.waiters, deque()
        for waiter in waiters:
            waiter.answer(Win32.NOT_FOUND, None)

    # Timers

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` has to be called; None if there is no timer."""
        return self._timers[0][0] if self._timers else None

    def _deadline(self, entry: Registration) -> float | None:
        if not entry.waiters:
            return entry.last_use + self.limits.unused
        return entry.waiters[0].deadline

    def _schedule(self, entry: Registration) -> None:
        """Set a timer for the registration's deadline, unless it has one that fires earlier.

        A timer that fires too early is set again then. So repeated waiting adds no timers."""
        deadline = self._deadline(entry)
        if deadline is not None and (entry.scheduled is None or deadline < entry.scheduled):
            entry.scheduled = deadline
            heapq.heappush(self._timers, (deadline, entry.key))

    def handle_timer(self, now: float) -> None:
        """Answer calls whose keepalive has expired, and remove unused registrations. [MS-SWN 3.1.4.4, 3.1.5.1]"""
        while self._timers and self._timers[0][0] <= now:
            when, key = heapq.heappop(self._timers)
            entry = self._by_key.get(key)
            if entry is None or entry.scheduled != when:
                continue
            entry.scheduled = None
            while entry.waiters and entry.waiters[0].deadline is not None and entry.waiters[0].deadline <= now:
                entry.last_use = now
                entry.waiters.popleft().answer(Win32.TIMEOUT, None)
            if not entry.waiters and entry.last_use + self.limits.unused <= now:
                self._remove(entry)
            else:
                self._schedule(entry)

    # Events

    def notify(self, event: Event, now: float) -> int:
        """Notify every registration that an event concerns. Return how many. [MS-SWN 3.1.6]"""
        if isinstance(event, ResourceChanged):
            return self._resource_changed(event, now)
        if isinstance(event, ClientMove):
            found = self._by_client.get(event.client.casefold(), {}).values()
            matching = [
                entry
                for entry in found
                if (event.net_name is None or entry.net_name.casefold() == event.net_name.casefold())
                and (event.registered is None or entry.ip_address in event.registered)
            ]
            return self._tell(matching, MessageType.CLIENT_MOVE, pack_address_list(event.addresses), "move", now)
        entries = self._by_name.get(event.net_name.casefold(), {}).values()
        if isinstance(event, ShareMove):
            share = event.share.casefold()
            matching = [e for e in entries if e.share_name is not None and e.share_name.casefold() == share]
            return self._tell(matching, MessageType.SHARE_MOVE, pack_address_list(event.addresses), "move", now)
        if isinstance(event, ServiceMove):
            return self._service_moves(event, entries, now)
        return self._ip_changed(event, entries, now)

    def _service_moves(self, event: ServiceMove, entries: Iterable[Registration], now: float) -> int:
        shares = {share.casefold() for share in event.shares}
        of_shares: list[Registration] = []
        others: list[Registration] = []
        for entry in entries:
            if entry.share_name is None:
                if event.registered is None or entry.ip_address in event.registered:
                    others.append(entry)
            elif entry.share_name.casefold() in shares:
                of_shares.append(entry)
        messages = pack_address_list(event.addresses)
        return self._tell(of_shares, MessageType.SHARE_MOVE, messages, "move", now) + self._tell(
            others, MessageType.CLIENT_MOVE, messages, "move", now
        )

    def _ip_changed(self, event: IpChange, entries: Iterable[Registration], now: float) -> int:
        matching = [entry for entry in entries if entry.flags & RegisterFlags.IP_NOTIFICATION]
        # Each change builds on the ones before it, so none may be replaced by a later one.
        return self._tell(matching, MessageType.IP_CHANGE, pack_address_list(event.addresses), None, now)

    def _resource_changed(self, event: ResourceChanged, now: float) -> int:
        name = event.name.casefold()
        matching = list(self._by_name.get(name, {}).values())
        if not matching:
            matching = [
                entry
                for entry in self._by_key.values()
                if entry.share_name is not None and entry.share_name.casefold() == name
            ]
        if event.addresses is not None:
            matching = [entry for entry in matching if entry.ip_address in event.addresses]
        state = InterfaceState.AVAILABLE if event.available else InterfaceState.UNAVAILABLE
        return self._tell(
            matching, MessageType.RESOURCE_CHANGE, pack_resource_change(event.name, state), (name, state), now
        )

    def _tell(
        self, entries: list[Registration], kind: MessageType, messages: bytes, about: Hashable, now: float
    ) -> int:
        if not entries:
            return 0
        notification = Notification(kind, notification_stub(kind, messages, 1), about)
        for entry in entries:
            if entry.waiters:
                # It was in use until now, so its client has the full time of an unused one to wait again.
                entry.last_use = now
                self._answer(entry.waiters.popleft().answer, notification)
                self._schedule(entry)
            else:
                self._queue(entry, notification)
        return len(entries)

    def _queue(self, entry: Registration, notification: Notification) -> None:
        if notification.about is not None:
            same = [e for e in entry.queue if (e.kind, e.about) == (notification.kind, notification.about)]
            for earlier in same:
                entry.queue.remove(earlier)
        entry.queue.append(notification)
        if len(entry.queue) > self.limits.queue:
            entry.queue.popleft()
            self.notifications_dropped += 1

    def _answer(self, answer: Answer, notification: Notification) -> None:
        self.notifications_sent += 1
        answer(Win32.SUCCESS, notification)


def _discard(index: dict[Any, dict[bytes, Registration]], name: Hashable, key: bytes) -> None:
    bucket = index[name]
    del bucket[key]
    if not bucket:
        del index[name]


def _text(given: str | None) -> str:
    """Return the string. Raises INVALID_PARAMETER if it is null, empty or longer than ``MAX_NAME``."""
    if not given or len(given) > MAX_NAME:
        raise WitnessError(Win32.INVALID_PARAMETER)
    return given
