"""Connects RPC operations to impacket's NDR structures, and context handles to objects."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from impacket.dcerpc.v5.dtypes import USHORT
from impacket.dcerpc.v5.ndr import NDRPOINTER

from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, FAULT_UNSPECIFIED, Deferred, Fault, Operation

if TYPE_CHECKING:
    from smb3server.state.objects import Session
    from smb3server.state.server_state import ServerState

log = logging.getLogger(__name__)

ERROR_ACCESS_DENIED = 5
ERROR_NOT_SUPPORTED = 50
ERROR_INVALID_PARAMETER = 87
ERROR_FILE_NOT_FOUND = 2
ERROR_INVALID_HANDLE = 6
ERROR_WRITE_FAULT = 29
ERROR_INSUFFICIENT_BUFFER = 122
ERROR_INVALID_NAME = 123
ERROR_INVALID_LEVEL = 124
ERROR_MORE_DATA = 234
ERROR_NO_MORE_ITEMS = 259
NERR_UNKNOWN_DEVICE = 2116
NERR_DUPLICATE_SHARE = 2118
NERR_NET_NAME_NOT_FOUND = 2310
NERR_DEVICE_NOT_SHARED = 2311
NERR_CLIENT_NAME_NOT_FOUND = 2312


def wire_uuid(text: str) -> bytes:
    """Return a UUID as encoded in messages."""
    return uuid.UUID(text).bytes_le


def text(value: str) -> str:
    """Append the terminator that NDR strings contain."""
    return value + "\0"


def declare(base: type, **layout: Any) -> Any:
    """Return a structure, union, pointer or array of NDR with the layout that impacket reads from its attributes."""
    return type(base.__name__, (base,), layout)


def _decoded(request_type: Any, stub: bytes) -> Any:
    try:
        return request_type(stub)
    except Exception as error:
        # impacket's decoders may raise any exception for malformed input.
        log.debug("bad stub of %s: %r", request_type.__name__, error)
        raise Fault(FAULT_BAD_STUB_DATA) from error


Serve = Callable[[Any, Any], None]
"""Fills an answer, its second argument, out of a request."""


class CallError(Exception):
    """Ends a call with the error, or the status, that its answer ends in."""

    def __init__(self, error: int) -> None:
        super().__init__(f"error 0x{error:x}")
        self.error = error


def answering(answer_type: Any, serve: Serve) -> Callable[[Any], Any]:
    """Return a function that lets ``serve`` fill an answer, and reports the ``CallError`` that it raises.

    What ``serve`` has filled until then goes out with the error."""

    def call(request: Any) -> Any:
        answer = answer_type()
        answer["ErrorCode"] = 0
        try:
            serve(request, answer)
        except CallError as error:
            answer["ErrorCode"] = error.error
        return answer

    return call


ServerName = declare(NDRPOINTER, referent=(("Data", USHORT),))
"""The name of the server where a call begins with a pointer to one character. Nothing depends on it.
[MS-RRP 2.2.2, MS-EVEN 2.2.7]"""


class ByteAnswer:
    """An answer that begins with a conformant array of bytes and goes on with numbers, in the order of ``names``.

    impacket needs a minute for an array of half a megabyte. ``optional``: the number that is a unique pointer."""

    def __init__(self, array: str, *names: str, optional: str = "") -> None:
        self._array = array
        self._optional = optional
        self._data = b""
        self._numbers: dict[str, int | None] = dict.fromkeys((*names, "ErrorCode"), 0)

    def __setitem__(self, name: str, value: Any) -> None:
        if name == self._array:
            self._data = value
        else:
            self._numbers[name] = value

    def getData(self) -> bytes:
        """Return the encoded answer."""
        parts = [len(self._data).to_bytes(4, "little"), self._data, bytes(-len(self._data) % 4)]
        for name, value in self._numbers.items():
            if name == self._optional:
                parts.append((0 if value is None else 0x20000).to_bytes(4, "little"))
            if value is not None:
                parts.append(value.to_bytes(4, "little"))
        return b"".join(parts)


def operations(*served: tuple[Any, Serve] | tuple[Any, Any, Serve]) -> dict[int, Operation]:
    """Return operations by opnum, each of a request, its answer, and what fills the answer. Where no answer is named,
    it is the one that impacket has beside the request."""
    found = {}
    for request, *answer, serve in served:
        made = answer[0] if answer else getattr(sys.modules[request.__module__], f"{request.__name__}Response")
        found[request.opnum] = operation(request, answering(made, serve))
    return found


def operation(request_type: Any, serve: Callable[[Any], Any]) -> Operation:
    """Return an operation that decodes its request, calls ``serve`` and encodes the result."""

    def run(stub: bytes) -> bytes:
        request = _decoded(request_type, stub)
        try:
            return bytes(serve(request).getData())
        except UnicodeError as error:
            # impacket decodes strings only when they are accessed.
            raise Fault(FAULT_BAD_STUB_DATA) from error

    return run


def operation_later(request_type: Any, serve: Callable[[Any], Awaitable[Any]]) -> Operation:
    """Return an operation whose ``serve`` takes its time. What it began goes on if the client loses patience."""
    tasks: set[asyncio.Task[None]] = set()

    def run(stub: bytes) -> Deferred:
        request = _decoded(request_type, stub)
        deferred = Deferred(lambda: None)

        async def answer() -> None:
            try:
                deferred.resolve(bytes((await serve(request)).getData()))
            except Fault as error:
                deferred.fail(error.status)
            except UnicodeError:
                deferred.fail(FAULT_BAD_STUB_DATA)
            except Exception:
                log.exception("RPC operation %s failed", request_type.__name__)
                deferred.fail(FAULT_UNSPECIFIED)

        task = asyncio.get_running_loop().create_task(answer())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return deferred

    return run


CONTEXT_MISMATCH = 0x1C00001A
MAX_HANDLES = 256
"""Handles per pipe. A client that opens more gets a fault."""
NULL_HANDLE = bytes(20)


def _key(handle: Any) -> bytes:
    """Return a handle as bytes. impacket decodes it to bytes, or to a structure of attributes and UUID."""
    return handle if isinstance(handle, bytes) else bytes(handle.getData())


class Handles:
    """The open handles of one association and their objects. [C706 6.1.6]"""

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


class Calls:
    """The calls of one client to an interface."""

    def __init__(self, server: ServerState, session: Session) -> None:
        self._server = server
        self._session = session
        self._handles = Handles()

    @property
    def _is_administrator(self) -> bool:
        return self._server.accounts.administers(self._session.identity)
