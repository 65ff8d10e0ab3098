"""The TCP connections of a service's clients, in the store: whoever takes the service over from a node that died knows
whom to tell (``tickle``).

Below ``state/SERVICE/peers/OWNERSHIP/``, OWNERSHIP being the version of the owner key: groups of up to ``GROUP``
connections, which are written late and together, one small transaction in a second at most. So what is lost with its
owner is what came in the last second or two, and whoever is forgotten just notices later. A connection that ends within
that time is never written.
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
"""Connections in one key: few enough to write them anew when one of them changes."""
GROUPS_PER_WRITE = 32
"""Keys in one transaction."""
WRITE_DELAY = 1.0
"""Seconds between a change and its transaction, and between two transactions."""
RETRY_DELAY = 5.0
"""Seconds until the next one after one that failed."""
MAX_PEERS = 1 << 16
"""Connections of one service that are recorded; more are not."""
_FORMAT = 1
_PORTS = struct.Struct("!HH")


class Peer(NamedTuple):
    """A client's connection."""

    local: Address
    local_port: int
    client: Address
    client_port: int


def peers_prefix(prefix: str) -> str:
    """Of what is recorded for a service, by all its owners."""
    return f"{prefix}peers/"


def peer_of(connection: Connection) -> Peer | None:
    """None for connections that are none of TCP, or that its kernel knows nothing of: RoCE, and NICs that do iWARP by
    themselves; and for those that cannot be addressed without their interface (RFC 4007)."""
    transport = connection.transport
    if transport.rdma is not None and transport.rdma.fabric != "iwarp":
        return None
    local, client = map(_address, (transport.local_address[0], transport.peer_address[0]))
    if local is None or client is None or local.version != client.version or client.is_link_local:
        return None
    return Peer(local, transport.local_address[1], client, transport.peer_address[1])


def _address(text: str) -> Address | None:
    """Of a socket; IPv4 in IPv6 is IPv4. None for what is no address."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def pack(peers: Sequence[Peer]) -> bytes:
    """The value of a key."""
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
    """Raises ``ValueError``."""
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
    """Of one ownership. ``conditions`` hold for every write: that it has not ended. ``close`` it when it has."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        ownership: int,
        conditions: Sequence[Condition],
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """``prefix``: of the service's state; ``ownership``: the owner key's version; ``on_refused``: called when a
        condition does not hold any more."""
        self._store = store
        self._all = peers_prefix(prefix)
        self._own = f"{self._all}{ownership:016x}/"
        self._conditions = tuple(conditions)
        self._on_refused = on_refused
        self._group_of: dict[Peer, int] = {}
        self._groups: dict[int, set[Peer]] = {}
        self._roomy: set[int] = set()
        """Groups that are half empty, or emptier."""
        self._filling = 0
        """The group that new connections go to."""
        self._stored: dict[int, bytes] = {}
        self._changed: dict[int, None] = {}
        """Groups, in the order of their changes."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._closed = False

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)

    @property
    def settled(self) -> bool:
        """Nothing is left to write, or nothing may be written any more."""
        return self._closed or not (self._changed or self._writing)

    def close(self) -> None:
        """Write nothing any more; what is written stays for the next owner."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add(self, peer: Peer) -> None:
        if peer in self._group_of or len(self._group_of) >= MAX_PEERS:
            return
        number = self._group_with_room()
        self._groups[number].add(peer)
        self._group_of[peer] = number
        self._touch(number)

    def discard(self, peer: Peer) -> None:
        number = self._group_of.pop(peer, None)
        if number is None:
            return
        group = self._groups[number]
        group.discard(peer)
        if number != self._filling and len(group) <= GROUP // 2:
            self._roomy.add(number)
        self._touch(number)

    def _group_with_room(self) -> int:
        """Those who come together are written together."""
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
            # Somebody else's service now: whoever has it reads what is there.
            self.close()
            self._on_refused()
            return
        else:
            log.debug("connections not recorded: %s", error)
            for number in written:
                # It may have been written all the same.
                self._stored[number] = b"?"
                self._changed[number] = None
        if self._changed:
            self._schedule(WRITE_DELAY if error is None else RETRY_DELAY)

    # What other ownerships left

    async def left_over(self) -> tuple[list[Peer], list[str]]:
        """Connections to nodes that had the service before, and the prefixes that they are recorded under. Raises
        ``StoreError``."""
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
        """Remove what ``left_over`` found. Raises ``StoreError``."""
        for prefix in prefixes:
            await self._store.commit([DeletePrefix(prefix)], self._conditions)
