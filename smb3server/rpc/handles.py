"""Context handles of one association, which name the objects that a client has opened. [C706 6.1.6]"""

from __future__ import annotations

import os
from typing import Any

from smb3server.rpc.dcerpc import Fault

CONTEXT_MISMATCH = 0x1C00001A
MAX_HANDLES = 256
"""Handles per pipe. A client that opens more gets a fault."""
NULL_HANDLE = bytes(20)


def _key(handle: Any) -> bytes:
    """Return a handle as bytes. impacket decodes it to bytes, or to a structure of attributes and UUID."""
    return handle if isinstance(handle, bytes) else bytes(handle.getData())


class Handles:
    """The open handles of one association and their objects."""

    def __init__(self) -> None:
        self._open: dict[bytes, object] = {}

    def add(self, value: object) -> bytes:
        """Return a new handle for an object. Raises ``Fault`` if there are too many."""
        if len(self._open) >= MAX_HANDLES:
            raise Fault(0x1C010014)
        handle = bytes(4) + os.urandom(16)
        self._open[handle] = value
        return handle

    def find(self, handle: Any, kind: type | None = None) -> Any:
        """Return the object of a handle. Raises ``Fault`` if the handle is not open or its object is not of
        ``kind``."""
        key = _key(handle)
        value = self._open.get(key)
        if value is None or (kind is not None and not isinstance(value, kind)):
            raise Fault(CONTEXT_MISMATCH)
        return value

    def close(self, handle: Any) -> None:
        """Close a handle. Raises ``Fault`` if it is not open."""
        key = _key(handle)
        if self._open.pop(key, None) is None:
            raise Fault(CONTEXT_MISMATCH)
