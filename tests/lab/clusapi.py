"""As much of the cluster's own RPC interface (MS-CMRP) as smbtorture needs to make events: one resource, which can be
brought online and offline. Test equipment only."""

from __future__ import annotations

import struct
from collections.abc import Callable

from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import wire_uuid

UUID = wire_uuid("B97DB8B2-4C63-11CF-BFF6-08002BE23F2F")
VERSION = 3
ONLINE, OFFLINE = 2, 3
HANDLE = struct.pack("<I", 0) + bytes(range(1, 17))
OK = bytes(4)


class Resource:
    def __init__(self, changed: Callable[[bool], None]) -> None:
        self.state = ONLINE
        self._changed = changed

    def interface(self) -> Interface:
        return Interface(
            UUID,
            VERSION,
            {
                8: lambda stub: OK + OK + HANDLE,
                11: lambda stub: bytes(20) + OK,
                12: lambda stub: struct.pack("<I", self.state) + self._name(1) + self._name(2) + OK + OK,
                17: lambda stub: self._set(ONLINE),
                18: lambda stub: self._set(OFFLINE),
            },
        )

    @staticmethod
    def _name(referent: int) -> bytes:
        text = "A\0".encode("utf-16-le")
        return struct.pack("<IIII", referent, 2, 0, 2) + text

    def _set(self, state: int) -> bytes:
        self.state = state
        self._changed(state == ONLINE)
        return OK + OK
