"""Context handles (C706 6.1.6) of one association: what a client opened and refers to later."""

from __future__ import annotations

import os
from typing import Any

from smb3server.rpc.dcerpc import Fault

CONTEXT_MISMATCH = 0x1C00001A
MAX_HANDLES = 256
"""Per pipe; a client that opens more without closing gets a fault."""
NULL_HANDLE = bytes(20)


def _key(handle: Any) -> bytes:
    """impacket decodes a handle to its bytes, or to a structure of attributes and UUID."""
    return handle if isinstance(handle, bytes) else bytes(handle.getData())


class Handles:
    def __init__(self) -> None:
        self._open: dict[bytes, object] = {}

    def add(self, value: object) -> bytes:
        if len(self._open) >= MAX_HANDLES:
            raise Fault(0x1C010014)
        handle = bytes(4) + os.urandom(16)
        self._open[handle] = value
        return handle

    def find(self, handle: Any, kind: type | None = None) -> Any:
        """What a handle, as bytes or as decoded by impacket, stands for; a fault if nothing of ``kind``."""
        key = _key(handle)
        value = self._open.get(key)
        if value is None or (kind is not None and not isinstance(value, kind)):
            raise Fault(CONTEXT_MISMATCH)
        return value

    def close(self, handle: Any) -> None:
        key = _key(handle)
        if self._open.pop(key, None) is None:
            raise Fault(CONTEXT_MISMATCH)
