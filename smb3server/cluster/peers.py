"""The TCP connections of a service's clients, in the store: a node that takes the service over from one that died knows
which clients to notify (``tickle``).

The keys are below ``state/SERVICE/peers/OWNERSHIP/``, where OWNERSHIP is the version of the owner key. Each has a group
of up to ``GROUP`` connections. Groups are written late and together, in one small transaction per second at most. So
connections of the last second or two may be missing when their owner dies. Their clients notice the loss later, by
their own time-outs. A connection that ends within that time is never written.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from smb3server.persistence.store import (
    Condition,
    ConditionFailed,
    Delete,
    DeletePrefix,
    Operation,
    Put,
    Store,
    StoreError,
)
from smb3server.wire.address import Address

if TYPE_CHECKING:
    from smb3server.state.objects import Connection

log = logging.getLogger(__name__)

GROUP = 32
"""Connections in one key: few enough to write them all when one of them changes."""
GROUPS_PER_WRITE = 32
"""Keys in one transaction."""
WRITE_DELAY = 1.0
"""Seconds between a change and its transaction, and between two transactions."""
RETRY_DELAY = 5.0
"""Seconds between a transaction that failed and the next one."""
MAX_PEERS = 1 << 16
"""Connections of one service that are recorded at most."""
_FORMAT = 1
_PORTS = struct.Struct("!HH")


class Peer(NamedTuple):
    """A client's connection."""

    local: Address
    local_port: int
    client: Address
    client_port: int


def peers_prefix(prefix: str) -> str:
    """Return the prefix of a service's recorded connections, of all its owners. ``prefix``: that of its state."""
    return f"{prefix}peers/"


def peer_of(connection: Connection) -> Peer | None:
    """Return the addresses and ports of a TCP connection of this machine's kernel.

    Return None for other connections: RoCE, and iWARP that a NIC does by itself. Return None also for addresses that
    are not complete without their interface (RFC 4007)."""
    transport = connection.transport
    if transport.fabric not in ("tcp", "iwarp"):
        return None
    local, client = map(_address, (transport.local_address[0], transport.peer_address[0]))
    if local is None or client is None or local.version != client.version or client.is_link_local:
        return None
    return Peer(local, transport.local_address[1], client, transport.peer_address[1])


def _address(text: str) -> Address | None:
    """Parse the address of a socket, None if it is not an IP address. An IPv4-mapped IPv6 address counts as IPv4."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def pack(peers: Sequence[Peer]) -> bytes:
    """Return the value of a key with these connections."""
    parts = [bytes([_FORMAT])]
    for peer in peers:
        parts += [
            bytes([peer.local.version]),
            peer.local.packed,
            peer.client.packed,
            _PORTS.pack(peer.local_port, peer.client_port),
        ]
    return b"".join(parts)


def parse(data: bytes) -> list[Peer]:
    """Return the connections in the value of a key. Raises ``ValueError``."""
    if not data or data[0] != _FORMAT:
        raise ValueError("connections in an unknown format")
    found: list[Peer] = []
    position = 1
    while position < len(data):
        size = {4: 4, 6: 16}.get(data[position], 0)
        ports = position + 1 + 2 * size
        if not size or ports + _PORTS.size > len(data):
            raise ValueError("connections cut short")
        kind = ipaddress.IPv4Address if size == 4 else ipaddress.IPv6Address
        local, client = (kind(data[start : start + size]) for start in (position + 1, position + 1 + size))
        local_port, client_port = _PORTS.unpack_from(data, ports)
        found.append(Peer(local, local_port, client, client_port))
        position = ports + _PORTS.size
    return found


class PeerRecord:
    """The recorded connections of one ownership of a service. ``close`` it when the ownership ends."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        ownership: int,
        conditions: Sequence[Condition],
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """``prefix``: that of the service's state. ``ownership``: the owner key's version. ``conditions``: for every
        write, that the ownership has not ended. ``on_refused``: called when a condition no longer holds."""
        self._store = store
        self._all = peers_prefix(prefix)
        self._own = f"{self._all}{ownership:016x}/"
        self._conditions = tuple(conditions)
        self._on_refused = on_refused
        # Invariant: a connection is in ``_groups[n]`` if, and only if, ``_group_of`` has ``n`` for it.
        self._group_of: dict[Peer, int] = {}
        # Invariant: no group has more than GROUP connections.
        self._groups: dict[int, set[Peer]] = {}
        self._roomy: set[int] = set()
        """Groups that are at least half empty."""
        self._filling = 0
        """The group that new connections go to."""
        self._stored: dict[int, bytes] = {}
        """The value of each group's key, as far as it is known."""
        self._changed: dict[int, None] = {}
        """Groups that have to be written, in the order of their changes."""
        # Invariant: while ``_writing``, ``_timer`` is None.
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        """Whether a transaction is under way."""
        self._closed = False

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)

    @property
    def is_stored(self) -> bool:
        """Whether there is nothing to write, or nothing may be written any longer."""
        return self._closed or not (self._changed or self._writing)

    def close(self) -> None:
        """Write nothing more. The written connections stay for the next owner."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add(self, peer: Peer) -> None:
        """Record a new connection, unless there are ``MAX_PEERS`` already."""
        if peer in self._group_of or len(self._group_of) >= MAX_PEERS:
            return
        number = self._group_with_room()
        self._groups[number].add(peer)
        self._group_of[peer] = number
        self._touch(number)

    def discard(self, peer: Peer) -> None:
        """Remove a connection that has ended, if it is recorded."""
        number = self._group_of.pop(peer, None)
        if number is None:
            return
        group = self._groups[number]
        group.discard(peer)
        if number != self._filling and len(group) <= GROUP // 2:
            self._roomy.add(number)
        self._touch(number)

    def _group_with_room(self) -> int:
        """Return the group for a new connection. Connections that come together share one, and are written together."""
        if len(self._groups.setdefault(self._filling, set())) >= GROUP:
            self._filling = self._roomy.pop() if self._roomy else len(self._groups)
            self._groups.setdefault(self._filling, set())
        return self._filling

    def _touch(self, number: int) -> None:
        self._changed[number] = None
        self._schedule(WRITE_DELAY)

    def _schedule(self, delay: float) -> None:
        if self._timer is None and not self._writing and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay, self._write)

    def _write(self) -> None:
        self._timer = None
        written: dict[int, bytes] = {}
        operations: list[Operation] = []
        while self._changed and len(operations) < GROUPS_PER_WRITE:
            number = next(iter(self._changed))
            del self._changed[number]
            group = self._groups[number]
            value = pack(sorted(group, key=lambda peer: (peer.local.version, peer))) if group else b""
            if value == self._stored.get(number, b""):
                continue
            key = f"{self._own}{number:06x}"
            operations.append(Put(key, value) if value else Delete(key))
            written[number] = value
        if not operations:
            return
        self._writing = True
        future = self._store.submit(operations, self._conditions)
        future.add_done_callback(lambda done: self._written(done, written))

    def _written(self, done: asyncio.Future[int], written: dict[int, bytes]) -> None:
        self._writing = False
        error = StoreError("cancelled") if done.cancelled() else done.exception()
        if self._closed:
            return
        if error is None:
            for number, value in written.items():
                if value:
                    self._stored[number] = value
                else:
                    self._stored.pop(number, None)
        elif isinstance(error, ConditionFailed):
            # Another node has the service now, and reads the recorded connections.
            self.close()
            self._on_refused()
            return
        else:
            log.debug("connections not recorded: %s", error)
            for number in written:
                # It may have been written in spite of the error.
                self._stored[number] = b"?"
                self._changed[number] = None
        if self._changed:
            self._schedule(WRITE_DELAY if error is None else RETRY_DELAY)

    # Connections of earlier ownerships

    async def left_over(self) -> tuple[list[Peer], list[str]]:
        """Return connections to nodes that had the service before, and the prefixes that they are recorded under.

        Raises ``StoreError``."""
        found: list[Peer] = []
        prefixes: dict[str, None] = {}
        for entry in await self._store.scan(self._all):
            if entry.key.startswith(self._own):
                continue
            prefixes[entry.key.rpartition("/")[0] + "/"] = None
            try:
                found += parse(entry.value)
            except ValueError as error:
                log.warning("%s: %s", entry.key, error)
        return found[:MAX_PEERS], list(prefixes)

    async def forget(self, prefixes: Sequence[str]) -> None:
        """Remove connections by the prefixes that ``left_over`` returned. Raises ``StoreError``."""
        for prefix in prefixes:
            await self._store.commit([DeletePrefix(prefix)], self._conditions)
