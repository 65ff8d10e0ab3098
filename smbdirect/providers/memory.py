"""Registered memory of one endpoint, for providers that check tokens, ranges and rights themselves."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access


class Fault(enum.Enum):
    """Why a peer's access is refused."""

    TOKEN = "no such valid token"
    RANGE = "outside the region"
    RIGHT = "right not granted"


class AccessRefused(Exception):
    """The peer named memory it may not touch; each provider turns the fault into its own error on the wire."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


def as_bytes_view(buffer: Buffer) -> memoryview:
    """A flat byte view. Raises ``ProviderError`` for memory that is not contiguous."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ProviderError("memory is not contiguous")
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


_NOTHING = memoryview(b"")


def _ignore(_: object) -> None:
    """Default callback."""


class Region:
    """See ``base.MemoryRegion``."""

    __slots__ = ("_table", "access", "address", "length", "memory", "token", "valid")

    def __init__(self, table: RegionTable, token: int, address: int, memory: memoryview, access: Access) -> None:
        self._table = table
        self.token = token
        self.address = address
        self.memory = memory
        self.length = len(memory)
        self.access = access
        self.valid = True

    def invalidate(self) -> None:
        """Local invalidate: refused from now on. Idempotent."""
        if self.valid:
            self.valid = False
            self._table.forget(self)
            self._table.on_invalidated(self)

    def deregister(self) -> None:
        """Invalidate, and keep no view of the memory. Idempotent."""
        self.invalidate()
        self.memory = _NOTHING


class RegionTable:
    """Regions of one endpoint by token."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self.on_invalidated: Callable[[Region], None] = _ignore
        """Told of each region that stops being valid while the connection lives: a transfer may be using it."""

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, memory: memoryview, access: Access) -> Region:
        """Raises ``ProviderError`` for memory that is not contiguous, or read-only although somebody may write it."""
        view = as_bytes_view(memory)
        if view.readonly and access & (Access.REMOTE_WRITE | Access.LOCAL_WRITE):
            raise ProviderError("read-only memory registered for writing")
        token = self.new_token()
        # The address is opaque to the peer; a random page of the 47-bit space tells it nothing about this process.
        region = Region(self, token, (secrets.randbits(35) + 1) << 12, view, access)
        self._regions[token] = region
        return region

    def new_token(self) -> int:
        """An unpredictable token that no region of this endpoint has."""
        while True:
            token = secrets.randbits(32)
            if token and token not in self._regions:
                return token

    def forget(self, region: Region) -> None:
        if self._regions.get(region.token) is region:
            del self._regions[region.token]

    def invalidate_all(self) -> None:
        """The connection is gone: no token is good any more."""
        regions, self._regions = self._regions, {}
        for region in regions.values():
            region.valid = False

    def get(self, token: int) -> Region | None:
        """The valid region that ``token`` names."""
        return self._regions.get(token)

    def find(self, token: int, address: int, length: int, right: Access) -> tuple[Region, int]:
        """The region with ``length`` bytes at ``address`` and where they start in it. Raises ``AccessRefused``."""
        region = self._regions.get(token)
        if region is None:
            raise AccessRefused(Fault.TOKEN)
        start = address - region.address
        if start < 0 or start + length > region.length:
            raise AccessRefused(Fault.RANGE)
        if right not in region.access:
            raise AccessRefused(Fault.RIGHT)
        return region, start

    def remote_invalidate(self, token: int) -> None:
        """The peer's Send with Invalidate. Raises ``AccessRefused`` if there is no such valid token."""
        region = self._regions.get(token)
        if region is None:
            raise AccessRefused(Fault.TOKEN)
        region.invalidate()
