"""Registered memory of one endpoint, for providers that check tokens, ranges and rights themselves."""

from __future__ import annotations

import enum
import secrets

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
        self.valid = False
        self._table.forget(self)

    def deregister(self) -> None:
        """No view of the memory is kept."""
        self.invalidate()
        self.memory = memoryview(b"")


class RegionTable:
    """Regions of one endpoint by token."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, memory: memoryview, access: Access) -> Region:
        """Raises ``ProviderError`` for memory that is not contiguous, or read-only although somebody may write it."""
        view = as_bytes_view(memory)
        if view.readonly and access & (Access.REMOTE_WRITE | Access.LOCAL_WRITE):
            raise ProviderError("read-only memory registered for writing")
        token = secrets.randbits(32)
        while not token or token in self._regions:
            token = secrets.randbits(32)
        # The address is opaque to the peer; a random page of the 47-bit space tells it nothing about this process.
        region = Region(self, token, (secrets.randbits(35) + 1) << 12, view, access)
        self._regions[token] = region
        return region

    def forget(self, region: Region) -> None:
        if self._regions.get(region.token) is region:
            del self._regions[region.token]

    def invalidate_all(self) -> None:
        """The connection is gone: no token is good any more."""
        regions, self._regions = self._regions, {}
        for region in regions.values():
            region.valid = False

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
