"""Connection-oriented DCE/RPC (C706 chapter 12, MS-RPCE) on a named pipe: bind, alter context, requests, faults.

The authentication is the session's; binds with a security trailer of their own are refused.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Annotated, NamedTuple

from construct import Bytes, Int8ul, Int16ul, Int32ul

from smbdirect.codec import Codec
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

REQUEST, RESPONSE, FAULT, BIND, BIND_ACK, BIND_NAK, ALTER, ALTER_RESPONSE = 0, 2, 3, 11, 12, 13, 14, 15
ORPHANED, CANCEL = 19, 18
FIRST_FRAGMENT, LAST_FRAGMENT, OBJECT_UUID = 0x01, 0x02, 0x80
LITTLE_ENDIAN = b"\x10\x00\x00\x00"

ACCEPTANCE, PROVIDER_REJECTION = 0, 2
NO_REASON, ABSTRACT_SYNTAX_NOT_SUPPORTED, TRANSFER_SYNTAXES_NOT_SUPPORTED = 0, 1, 2
NAK_AUTHENTICATION_TYPE = 8

FAULT_OPNUM_RANGE = 0x1C010002
FAULT_UNKNOWN_INTERFACE = 0x1C010003
FAULT_PROTOCOL = 0x1C01000B
FAULT_BAD_STUB_DATA = 0x000006F7
FAULT_ACCESS_DENIED = 0x00000005

MAX_FRAGMENT = 4280
MIN_FRAGMENT = 1432
"""MustRecvFragSize (C706 12.6.3.1)."""
MAX_CONTEXTS = 32
MAX_STUB = 1 << 20

NDR = uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le + b"\x02\x00\x00\x00"


class CommonHeader(NamedTuple):
    version: Annotated[int, Int8ul] = 5
    minor: Annotated[int, Int8ul] = 0
    type: Annotated[int, Int8ul] = 0
    flags: Annotated[int, Int8ul] = FIRST_FRAGMENT | LAST_FRAGMENT
    data_representation: Annotated[bytes, Bytes(4)] = LITTLE_ENDIAN
    fragment_length: Annotated[int, Int16ul] = 0
    auth_length: Annotated[int, Int16ul] = 0
    call_id: Annotated[int, Int32ul] = 0


class BindBody(NamedTuple):
    max_transmit: Annotated[int, Int16ul] = MAX_FRAGMENT
    max_receive: Annotated[int, Int16ul] = MAX_FRAGMENT
    association_group: Annotated[int, Int32ul] = 0


class ContextItem(NamedTuple):
    context_id: Annotated[int, Int16ul] = 0
    transfer_count: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0
    interface: Annotated[bytes, Bytes(16)] = bytes(16)
    version: Annotated[int, Int16ul] = 0
    minor: Annotated[int, Int16ul] = 0


class ContextResult(NamedTuple):
    result: Annotated[int, Int16ul] = 0
    reason: Annotated[int, Int16ul] = 0
    transfer: Annotated[bytes, Bytes(20)] = bytes(20)


class RequestBody(NamedTuple):
    """Also a response's: there the second byte pair is cancel count and padding."""

    allocation_hint: Annotated[int, Int32ul] = 0
    context_id: Annotated[int, Int16ul] = 0
    opnum: Annotated[int, Int16ul] = 0


COMMON = Codec(CommonHeader)
BIND_BODY = Codec(BindBody)
CONTEXT_ITEM = Codec(ContextItem)
CONTEXT_RESULT = Codec(ContextResult)
REQUEST_BODY = Codec(RequestBody)

Operation = Callable[[bytes], bytes]
"""Request stub to response stub."""


class Fault(Exception):
    """Ends a call with a fault PDU of this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"fault 0x{status:08x}")
        self.status = status


class Interface(NamedTuple):
    uuid: bytes
    """As on the wire."""
    version: int
    operations: dict[int, Operation]


class RpcEndpoint:
    """One pipe instance's association: feed it bytes, take fragments out of ``output``."""

    def __init__(self, name: str, interfaces: list[Interface]) -> None:
        self.output: list[bytes] = []
        self.broken = False
        """The peer broke the protocol: nothing more is answered."""
        self._address = f"\\PIPE\\{name}".encode("ascii") + b"\0"
        self._interfaces = {(entry.uuid, entry.version): entry for entry in interfaces}
        self._contexts: dict[int, Interface] = {}
        self._input = bytearray()
        self._stub = bytearray()
        self._call: tuple[int, RequestBody] | None = None
        self._max_fragment = MIN_FRAGMENT

    def feed(self, data: bytes) -> None:
        """Take what the client wrote: fragments, or parts or several of them."""
        if self.broken:
            return
        self._input += data
        while len(self._input) >= COMMON.size and not self.broken:
            header = COMMON.unpack(self._input)
            length = header.fragment_length
            if header.version != 5 or length < COMMON.size or header.data_representation[0] != LITTLE_ENDIAN[0]:
                self.broken = True
            elif length > len(self._input):
                return
            else:
                fragment = bytes(self._input[COMMON.size : length])
                del self._input[:length]
                try:
                    self._receive(header, fragment)
                except DecodeError as error:
                    log.debug("malformed RPC fragment: %s", error)
                    self._fault(header.call_id, 0, FAULT_PROTOCOL)

    def _receive(self, header: CommonHeader, body: bytes) -> None:
        if header.type in (BIND, ALTER):
            self._bind(header, body)
        elif header.type == REQUEST:
            self._request(header, body)
        elif header.type == ORPHANED:
            self._call = None
            self._stub.clear()
        elif header.type != CANCEL:
            self._fault(header.call_id, 0, FAULT_PROTOCOL)

    def _bind(self, header: CommonHeader, body: bytes) -> None:
        """C706 12.6.4.3-4: accept the interfaces known here in NDR, reject the rest one by one."""
        if header.auth_length:
            self._emit(BIND_NAK, header.call_id, NAK_AUTHENTICATION_TYPE.to_bytes(2, "little") + b"\x01\x05\x00")
            return
        bind = BIND_BODY.unpack(body)
        position = BIND_BODY.size + 4
        if len(body) < position or body[BIND_BODY.size] > MAX_CONTEXTS:
            raise DecodeError("bad context list")
        results: list[bytes] = []
        for _ in range(body[BIND_BODY.size]):
            item = CONTEXT_ITEM.unpack(body, position)
            position += CONTEXT_ITEM.size
            end = position + 20 * item.transfer_count
            if end > len(body):
                raise DecodeError("transfer syntaxes exceed the fragment")
            transfers = {body[at : at + 20] for at in range(position, end, 20)}
            position = end
            interface = self._interfaces.get((item.interface, item.version))
            if interface is None:
                result = ContextResult(PROVIDER_REJECTION, ABSTRACT_SYNTAX_NOT_SUPPORTED)
            elif NDR not in transfers:
                result = ContextResult(PROVIDER_REJECTION, TRANSFER_SYNTAXES_NOT_SUPPORTED)
            else:
                if len(self._contexts) >= MAX_CONTEXTS:
                    raise DecodeError("too many contexts")
                self._contexts[item.context_id] = interface
                result = ContextResult(ACCEPTANCE, NO_REASON, NDR)
            results.append(CONTEXT_RESULT.pack(result))
        if header.type == BIND:
            self._max_fragment = max(MIN_FRAGMENT, min(MAX_FRAGMENT, bind.max_receive))
        address = self._address if header.type == BIND else b""
        head = BIND_BODY.pack(BindBody(self._max_fragment, self._max_fragment, bind.association_group or 0x5342))
        head += len(address).to_bytes(2, "little") + address
        head += bytes(-len(head) & 3) + bytes((len(results), 0, 0, 0))
        self._emit(BIND_ACK if header.type == BIND else ALTER_RESPONSE, header.call_id, head + b"".join(results))

    def _request(self, header: CommonHeader, body: bytes) -> None:
        request = REQUEST_BODY.unpack(body)
        start = REQUEST_BODY.size + (16 if header.flags & OBJECT_UUID else 0)
        if header.auth_length or start > len(body):
            raise DecodeError("bad request")
        if header.flags & FIRST_FRAGMENT:
            self._call = (header.call_id, request)
            self._stub.clear()
        if self._call is None or self._call[0] != header.call_id:
            raise DecodeError("fragment of no call")
        if len(self._stub) + len(body) - start > MAX_STUB:
            self._call = None
            self._stub.clear()
            raise DecodeError("request too long")
        self._stub += body[start:]
        if header.flags & LAST_FRAGMENT:
            call_id, first = self._call
            stub = bytes(self._stub)
            self._call = None
            self._stub.clear()
            self._run(call_id, first, stub)

    def _run(self, call_id: int, request: RequestBody, stub: bytes) -> None:
        interface = self._contexts.get(request.context_id)
        if interface is None:
            self._fault(call_id, request.context_id, FAULT_UNKNOWN_INTERFACE)
            return
        operation = interface.operations.get(request.opnum)
        if operation is None:
            self._fault(call_id, request.context_id, FAULT_OPNUM_RANGE)
            return
        try:
            answer = operation(stub)
        except Fault as error:
            self._fault(call_id, request.context_id, error.status)
            return
        room = self._max_fragment - COMMON.size - REQUEST_BODY.size
        for start in range(0, max(len(answer), 1), room):
            part = answer[start : start + room]
            flags = (FIRST_FRAGMENT if not start else 0) | (LAST_FRAGMENT if start + room >= len(answer) else 0)
            body = REQUEST_BODY.pack(RequestBody(len(answer) - start, request.context_id, 0)) + part
            self._emit(RESPONSE, call_id, body, flags)

    def _fault(self, call_id: int, context_id: int, status: int) -> None:
        body = REQUEST_BODY.pack(RequestBody(0, context_id, 0)) + status.to_bytes(4, "little") + bytes(4)
        self._emit(FAULT, call_id, body)

    def _emit(self, kind: int, call_id: int, body: bytes, flags: int = FIRST_FRAGMENT | LAST_FRAGMENT) -> None:
        header = CommonHeader(type=kind, flags=flags, fragment_length=COMMON.size + len(body), call_id=call_id)
        self.output.append(COMMON.pack(header) + body)
