"""Connects RPC operations to impacket's NDR structures."""

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
    """Return a UUID as encoded in messages."""
    return uuid.UUID(text).bytes_le


def text(value: str) -> str:
    """Append the terminator that NDR strings contain."""
    return value + "\0"


def operation(request_type: Any, serve: Callable[[Any], Any]) -> Operation:
    """Return an operation that decodes its request, calls ``serve`` and encodes the result."""

    def run(stub: bytes) -> bytes:
        try:
            request = request_type(stub)
        except Exception as error:
            # impacket's decoders may raise any exception for malformed input.
            log.debug("bad stub of %s: %r", request_type.__name__, error)
            raise Fault(FAULT_BAD_STUB_DATA) from error
        try:
            return bytes(serve(request).getData())
        except UnicodeError as error:
            # impacket decodes strings only when they are accessed.
            raise Fault(FAULT_BAD_STUB_DATA) from error

    return run
