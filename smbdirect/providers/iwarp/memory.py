"""Registered memory of one endpoint: steering tags, ranges, rights (RFC 5040 section 3.1, RFC 5042)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access
from smbdirect.providers.iwarp.rdmap import Fault, TerminateError

_ADDRESS_SPACE = 1 << 64


def as_bytes_view(buffer: bytes | bytearray | memoryview) -> memoryview:
    """A flat byte view. Raises ``ProviderError`` for memory that is not contiguous."""
    view = memoryview(buffer)
    if view.ndim == 1 and view.format == "B" and view.c_contiguous:
        return view
    if not view.c_contiguous:
        raise ProviderError("memory is not contiguous")
    return view.cast("B")


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
        """Local invalidate: refused from now on; a transfer under way ends the connection. Idempotent."""
        if self.valid:
            self.valid = False
            self._table.on_invalidated(self)

    def deregister(self) -> None:
        """Invalidate and forget; no view of the memory is kept. Idempotent."""
        self.invalidate()
        self._table.forget(self)
        self.memory = memoryview(b"")


class RegionTable:
    """Regions of one endpoint by token."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self.on_invalidated: Callable[[Region], None] = lambda region: None

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, memory: memoryview, access: Access) -> Region:
        """Raises ``ProviderError`` for memory that is not contiguous, or read-only although the peer may write it."""
        view = as_bytes_view(memory)
        if view.readonly and access & (Access.REMOTE_WRITE | Access.LOCAL_WRITE):
            raise ProviderError("read-only memory registered for writing")
        # The address is opaque to the peer; a random page of the 47-bit space tells it nothing about this process.
        address = (secrets.randbits(35) + 1) << 12
        region = Region(self, self.new_token(), address, view, access)
        self._regions[region.token] = region
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

    def for_write(self, token: int, offset: int, length: int) -> memoryview:
        """The memory that an RDMA Write places into. Raises ``TerminateError`` (DDP tagged buffer errors)."""
        region = self._regions.get(token)
        if region is None or not region.valid:
            raise TerminateError(Fault.TAGGED_INVALID_STAG)
        if offset + length > _ADDRESS_SPACE:
            raise TerminateError(Fault.TAGGED_OFFSET_WRAP)
        start = offset - region.address
        if start < 0 or start + length > region.length:
            raise TerminateError(Fault.TAGGED_BOUNDS)
        if not region.access & Access.REMOTE_WRITE:
            raise TerminateError(Fault.ACCESS_RIGHTS)
        return region.memory[start : start + length]

    def writable(self, token: int) -> Region | None:
        """The valid region that the peer may write, if ``token`` names one."""
        region = self._regions.get(token)
        return region if region is not None and region.valid and region.access & Access.REMOTE_WRITE else None

    def for_read(self, token: int, offset: int, length: int) -> tuple[Region, memoryview]:
        """The memory that an RDMA Read is answered from. Raises ``TerminateError`` (remote protection errors)."""
        region = self._regions.get(token)
        if region is None or not region.valid:
            raise TerminateError(Fault.INVALID_STAG)
        if offset + length > _ADDRESS_SPACE:
            raise TerminateError(Fault.OFFSET_WRAP)
        start = offset - region.address
        if start < 0 or start + length > region.length:
            raise TerminateError(Fault.BOUNDS)
        if not region.access & Access.REMOTE_READ:
            raise TerminateError(Fault.ACCESS_RIGHTS)
        return region, region.memory[start : start + length]

    def remote_invalidate(self, token: int) -> None:
        """Send with Invalidate (RFC 5040 section 5.3). Raises ``TerminateError`` if there is no such valid token."""
        region = self._regions.get(token)
        if region is None or not region.valid:
            raise TerminateError(Fault.CANNOT_INVALIDATE)
        region.invalidate()
