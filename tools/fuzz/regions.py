"""Registered memory with a known token and address, and guards around what a peer may change."""

from __future__ import annotations

from smbdirect.providers.base import Access
from smbdirect.providers.memory import RegionTable
from tools.fuzz.target import Wrong

_GUARD = 4096


class Regions(RegionTable):
    """One region that the peer may read and write, in the middle of memory that it may not touch."""

    TOKEN = 0x01020304
    ADDRESS = 0x10000
    LENGTH = 16384

    def __init__(self) -> None:
        super().__init__()
        self.memory = bytearray(_GUARD + self.LENGTH + _GUARD)
        window = memoryview(self.memory)[_GUARD : _GUARD + self.LENGTH]
        region = self.register(window, Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE)
        region.address = self.ADDRESS

    def new_token(self) -> int:
        """Return the one token: inputs must be able to name it."""
        return self.TOKEN


def check_guards(regions: Regions) -> None:
    """Raise ``Wrong`` if memory outside the region has changed."""
    if any(regions.memory[:_GUARD]) or any(regions.memory[-_GUARD:]):
        raise Wrong("memory outside the region was changed")
