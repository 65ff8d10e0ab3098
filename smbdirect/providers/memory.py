"""Registered memory in user space: the regions of an endpoint, whose tokens, ranges and rights the provider checks
itself, and a protection domain without a device."""

from __future__ import annotations

import enum
import itertools
import secrets
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.providers import base
from smbdirect.providers.base import ATOMIC_SIZE, Access, DomainUser, ignore

_NUMBER = struct.Struct("=Q")


class Fault(enum.Enum):
    """Why a peer's access is refused."""

    TOKEN = "no such valid token"
    RANGE = "outside the region"
    RIGHT = "right not granted"
    ALIGNMENT = "not on a multiple of 8"


class AccessRefused(Exception):
    """The peer named memory that it may not access; each provider reports the fault by its own error on the wire."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


def as_bytes_view(buffer: Buffer) -> memoryview:
    """Return a flat byte view. Raise ``ProviderError`` if the memory is not contiguous."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ProviderError("memory is not contiguous")
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


_NOTHING = memoryview(b"")


class Region:
    """One registered region. Implements ``base.MemoryRegion``."""

    __slots__ = ("_owner", "access", "address", "length", "memory", "token", "valid")

    def __init__(
        self, owner: RegionTable | LocalDomain, token: int, address: int, memory: memoryview, access: Access
    ) -> None:
        self._owner = owner
        self.token = token
        self.address = address
        self.memory = memory
        self.length = len(memory)
        self.access = access
        self.valid = True

    def invalidate(self) -> None:
        if self.valid:
            self.valid = False
            self._owner.forget(self)

    def deregister(self) -> None:
        """See ``base.MemoryRegion.deregister``. No view of the memory is kept."""
        self.invalidate()
        self.memory = _NOTHING


class RegionTable:
    """The regions that the peer of one endpoint may name: its own, and those that it shares with other endpoints."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        """The endpoint's own, by token. Invariant: contains the valid regions and no others."""
        self._shared: SharedRegions | None = None
        self.on_invalidated: Callable[[Region], None] = ignore
        """Called with each region that becomes invalid while the connection exists: a transfer may be using it."""

    def __len__(self) -> int:
        return len(self._regions)

    def __iter__(self) -> Iterator[Region]:
        return itertools.chain(self._regions.values(), self._shared or ())

    def share(self, shared: SharedRegions) -> None:
        """Let the peer name the regions of ``shared``, too."""
        self._shared = shared
        shared.tables.add(self)

    def register(self, memory: memoryview, access: Access) -> Region:
        """Register ``memory`` under a new token. Raise ``ProviderError`` if it is not contiguous, or read-only although
        ``access`` allows writing."""
        view = as_bytes_view(memory)
        if view.readonly and access & (Access.REMOTE_WRITE | Access.LOCAL_WRITE | Access.REMOTE_ATOMIC):
            raise ProviderError("read-only memory registered for writing")
        token = self.new_token()
        # The address is opaque to the peer; a random page of the 47-bit space reveals nothing about this process.
        region = Region(self, token, (secrets.randbits(35) + 1) << 12, view, access)
        self._regions[token] = region
        return region

    def new_token(self) -> int:
        """Return an unpredictable token that no region of this endpoint has."""
        while True:
            token = secrets.randbits(32)
            if token and self.get(token) is None:
                return token

    def forget(self, region: Region) -> None:
        """Remove a region; only its ``invalidate`` calls this."""
        if self._regions.get(region.token) is region:
            del self._regions[region.token]
        self.on_invalidated(region)

    def invalidate_all(self) -> None:
        """Make every token of the endpoint's own regions invalid: the connection has ended."""
        regions, self._regions = self._regions, {}
        for region in regions.values():
            region.valid = False
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.tables.discard(self)

    def get(self, token: int) -> Region | None:
        """Return the valid region that ``token`` names, or None."""
        region = self._regions.get(token)
        return region if region is not None or self._shared is None else self._shared.get(token)

    def find(self, token: int, address: int, length: int, right: Access) -> tuple[Region, int]:
        """Return the region with ``length`` bytes at ``address`` and where they start in it. Raise ``AccessRefused``
        for a bad token, range or right."""
        region = self.get(token)
        if region is None:
            raise AccessRefused(Fault.TOKEN)
        start = address - region.address
        if start < 0 or start + length > region.length:
            raise AccessRefused(Fault.RANGE)
        if right not in region.access:
            raise AccessRefused(Fault.RIGHT)
        return region, start

    def change(self, token: int, address: int, compare: int | None, operand: int) -> int:
        """Carry out an ``Atomic`` of the peer, and return the number that was there. Raise ``AccessRefused``; nothing
        has changed then."""
        if address % ATOMIC_SIZE:
            raise AccessRefused(Fault.ALIGNMENT)
        region, start = self.find(token, address, ATOMIC_SIZE, Access.REMOTE_ATOMIC)
        found: int = _NUMBER.unpack_from(region.memory, start)[0]
        if compare is None:
            _NUMBER.pack_into(region.memory, start, (found + operand) & 0xFFFFFFFFFFFFFFFF)
        elif found == compare:
            _NUMBER.pack_into(region.memory, start, operand)
        return found

    def remote_invalidate(self, token: int) -> None:
        """Invalidate the region that the peer's Send with Invalidate names. Raise ``AccessRefused`` if the token is not
        that of a valid region of this endpoint alone: no peer takes away what others use."""
        region = self._regions.get(token)
        if region is None:
            raise AccessRefused(Fault.TOKEN)
        region.invalidate()


class SharedRegions(RegionTable):
    """Regions that the peers of several endpoints may name. Implements ``base.SharedRegions``.

    The peers are one trust domain: each of them may access what any of them is given."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: weakref.WeakSet[RegionTable] = weakref.WeakSet()
        """Those of the endpoints whose peers may name these regions."""

    def get(self, token: int) -> Region | None:
        return self._regions.get(token)

    def new_token(self) -> int:
        """Return an unpredictable token that no region of the endpoints has."""
        while True:
            token = super().new_token()
            if all(table.get(token) is None for table in self.tables):
                return token

    def forget(self, region: Region) -> None:
        super().forget(region)
        for table in tuple(self.tables):
            table.on_invalidated(region)

    def close(self) -> None:
        """Deregister every region."""
        for region in tuple(self._regions.values()):
            region.deregister()


class LocalDomain:
    """A protection domain without a device. Implements ``base.ProtectionDomain``. No peer can name its registrations,
    whose tokens are 0."""

    def __init__(self) -> None:
        self.live: set[Region] = set()
        self.closed = False
        self._owners: Counter[int] = Counter()
        """By the ``id`` of the object behind the memory: how many of ``live`` register it. Invariant: no count is 0."""
        self._users: weakref.WeakSet[DomainUser] = weakref.WeakSet()

    def add_user(self, user: DomainUser) -> None:
        self._users.add(user)

    def register(self, memory: memoryview, access: Access) -> Region:
        """See ``base.ProtectionDomain``. Raise ``ProviderError`` if ``access`` has a remote right, which only regions
        of one endpoint may give, or if the domain is closed."""
        if self.closed:
            raise ProviderError("the protection domain is closed")
        if access & (Access.REMOTE_READ | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC):
            raise ProviderError("a remote right in a domain that endpoints share")
        registration = Region(self, 0, 0, memory, access)
        self.live.add(registration)
        self._owners[id(memory.obj)] += 1
        return registration

    def forget(self, registration: Region) -> None:
        """Remove a registration; only its ``invalidate`` calls this."""
        self.live.discard(registration)
        owner = id(registration.memory.obj)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def covers(self, segment: Buffer) -> bool:
        """Return whether the object behind ``segment`` is registered here."""
        return id(memoryview(segment).obj) in self._owners

    def close(self) -> None:
        """Notify the users, then end every registration."""
        self.closed = True
        for user in list(self._users):
            user.domain_closed()
        for registration in list(self.live):
            registration.deregister()


def share(table: RegionTable, regions: base.SharedRegions) -> None:
    """Let the peer of the endpoint with ``table`` name ``regions``. Raise ``ProviderError`` if they are a device's."""
    if not isinstance(regions, SharedRegions):
        raise ProviderError("the regions belong to another fabric")
    table.share(regions)
