"""Between RPC operations and impacket's NDR structures."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, Fault, Operation

log = logging.getLogger(__name__)

ERROR_ACCESS_DENIED = 5
ERROR_NOT_SUPPORTED = 50
ERROR_INVALID_PARAMETER = 87
ERROR_INVALID_LEVEL = 124
NERR_NET_NAME_NOT_FOUND = 2310


def wire_uuid(text: str) -> bytes:
    return uuid.UUID(text).bytes_le


def text(value: str) -> str:
    """NDR strings carry their terminator."""
    return value + "\0"


def operation(request_type: Any, serve: Callable[[Any], Any]) -> Operation:
    """An operation that decodes its request, calls ``serve`` and encodes what that returns."""

    def run(stub: bytes) -> bytes:
        try:
            request = request_type(stub)
        except Exception as error:
            # impacket's decoders meet whatever the client sends, and raise whatever comes to them.
            log.debug("bad stub of %s: %r", request_type.__name__, error)
            raise Fault(FAULT_BAD_STUB_DATA) from error
        try:
            return bytes(serve(request).getData())
        except UnicodeError as error:
            # Strings are decoded when they are looked at.
            raise Fault(FAULT_BAD_STUB_DATA) from error

    return run
