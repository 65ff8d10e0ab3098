"""Connection-oriented DCE/RPC: bind, alter context, requests, faults. [C706 chapter 12, MS-RPCE]

Binds with a security trailer are refused here. ``smb3server.rpc.association`` accepts them.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int8ul, Int16ul, Int32ul

log = logging.getLogger(__name__)

REQUEST, RESPONSE, FAULT, BIND, BIND_ACK, BIND_NAK, ALTER, ALTER_RESPONSE = 0, 2, 3, 11, 12, 13, 14, 15
ORPHANED, CANCEL = 19, 18
FIRST_FRAGMENT, LAST_FRAGMENT, OBJECT_UUID = 0x01, 0x02, 0x80
LITTLE_ENDIAN = b"\x10\x00\x00\x00"

ACCEPTANCE, PROVIDER_REJECTION, NEGOTIATE_ACK = 0, 2, 3
NO_REASON, ABSTRACT_SYNTAX_NOT_SUPPORTED, TRANSFER_SYNTAXES_NOT_SUPPORTED = 0, 1, 2
NAK_AUTHENTICATION_TYPE = 8

FAULT_OPNUM_RANGE = 0x1C010002
FAULT_UNKNOWN_INTERFACE = 0x1C010003
FAULT_PROTOCOL = 0x1C01000B
FAULT_SERVER_TOO_BUSY = 0x1C010014
FAULT_CANCEL = 0x1C00000D
FAULT_UNSPECIFIED = 0x1C000012
FAULT_BAD_STUB_DATA = 0x000006F7
FAULT_ACCESS_DENIED = 0x00000005

MAX_FRAGMENT = 4280
MIN_FRAGMENT = 1432
"""MustRecvFragSize, in bytes. [C706 12.6.3.1]"""
MAX_CONTEXTS = 32
MAX_STUB = 1 << 20
"""Bytes of the stubs of all incomplete requests of one association."""
MAX_PARTIAL_CALLS = 16
"""Incomplete calls of one association: clients may send fragments of several calls in turn.
[C706 12.6.3.1, PFC_CONC_MPX]"""
MAX_PENDING_CALLS = 64
"""Calls of one association that wait for an answer."""

NDR = uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le + b"\x02\x00\x00\x00"


class CommonHeader(NamedTuple):
    """The header of every PDU. [C706 12.6.3.1]"""

    version: Annotated[int, Int8ul] = 5
    minor: Annotated[int, Int8ul] = 0
    type: Annotated[int, Int8ul] = 0
    flags: Annotated[int, Int8ul] = FIRST_FRAGMENT | LAST_FRAGMENT
    data_representation: Annotated[bytes, Bytes(4)] = LITTLE_ENDIAN
    fragment_length: Annotated[int, Int16ul] = 0
    auth_length: Annotated[int, Int16ul] = 0
    call_id: Annotated[int, Int32ul] = 0


class BindBody(NamedTuple):
    """The fixed part of a bind or a bind_ack."""

    max_transmit: Annotated[int, Int16ul] = MAX_FRAGMENT
    max_receive: Annotated[int, Int16ul] = MAX_FRAGMENT
    association_group: Annotated[int, Int32ul] = 0


class ContextItem(NamedTuple):
    """A presentation context in a bind, up to its transfer syntaxes."""

    context_id: Annotated[int, Int16ul] = 0
    transfer_count: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0
    interface: Annotated[bytes, Bytes(16)] = bytes(16)
    version: Annotated[int, Int16ul] = 0
    minor: Annotated[int, Int16ul] = 0


class ContextResult(NamedTuple):
    """The answer to one presentation context."""

    result: Annotated[int, Int16ul] = 0
    reason: Annotated[int, Int16ul] = 0
    transfer: Annotated[bytes, Bytes(20)] = bytes(20)


class RequestBody(NamedTuple):
    """The fixed part of a request. In a response the last two bytes are cancel count and padding."""

    allocation_hint: Annotated[int, Int32ul] = 0
    context_id: Annotated[int, Int16ul] = 0
    opnum: Annotated[int, Int16ul] = 0


COMMON = Codec(CommonHeader)
BIND_BODY = Codec(BindBody)
CONTEXT_ITEM = Codec(ContextItem)
CONTEXT_RESULT = Codec(ContextResult)
REQUEST_BODY = Codec(RequestBody)


class Fault(Exception):
    """Ends a call with a fault PDU of this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"fault 0x{status:08x}")
        self.status = status


class Deferred:
    """The result of an operation that is answered later: call ``resolve`` or ``fail`` once.

    ``on_abandon`` is called when the client cancels the call or its connection ends. No answer is sent then.
    """

    __slots__ = ("_finish", "on_abandon")

    def __init__(self, on_abandon: Callable[[], None]) -> None:
        self.on_abandon = on_abandon
        # Invariant: None before wait, and again after the call was answered or abandoned.
        self._finish: Callable[[bytes | Fault], None] | None = None

    def resolve(self, stub: bytes) -> None:
        """Answer with this response stub. Does nothing after the call was abandoned."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish(stub)

    def fail(self, status: int) -> None:
        """Answer with a fault. Does nothing after the call was abandoned."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish(Fault(status))

    def wait(self, finish: Callable[[bytes | Fault], None]) -> None:
        """Pass the answer to ``finish`` when there is one."""
        self._finish = finish

    def abandon(self) -> None:
        """Drop the call without an answer, and call ``on_abandon``."""
        if self._finish is not None:
            self._finish = None
            self.on_abandon()


Operation = Callable[[bytes], "bytes | Deferred"]
"""Takes a request stub and returns the response stub, or a ``Deferred`` that will have it. May raise ``Fault``."""


@dataclass(slots=True)
class Call:
    """A request of which some or all fragments have arrived."""

    call_id: int
    request: RequestBody
    security: Any = None
    """Security context of its first fragment. All other fragments must have the same. It protects the answer."""
    stub: bytearray = field(default_factory=bytearray)


class Interface(NamedTuple):
    """An RPC interface and the operations that are served."""

    uuid: bytes
    """The UUID as encoded in messages."""
    version: int
    operations: dict[int, Operation]
    """Operations by opnum."""


class RpcEndpoint:
    """One association. Pass bytes of the client to ``feed``, and take fragments for the client from ``output``."""

    def __init__(self, address: str, interfaces: list[Interface]) -> None:
        """Make an association without contexts.

        ``address`` is the secondary address of the bind_ack: a pipe's path or a port. [C706 12.6.4.4]
        """
        self.output: list[bytes] = []
        self.broken = False
        """Whether the association has ended, for example because the client violated the protocol. It sends no more
        answers."""
        self.waits = False
        """Whether input is only kept, and not processed for now."""
        self.max_fragment = MIN_FRAGMENT
        self.max_stub = MAX_STUB
        self._address = address.encode("ascii") + b"\0"
        self._interfaces = {(entry.uuid, entry.version): entry for entry in interfaces}
        self._contexts: dict[int, Interface] = {}
        self._input = bytearray()
        # Incomplete calls, and calls that wait for an answer. Invariant: no call identifier is in both.
        self._partial: dict[int, Call] = {}
        self._pending: dict[int, Deferred] = {}
        self._group = 0x5342
        """Association group. Contexts of a pipe are not shared, so any number but zero is valid."""

    def feed(self, data: bytes) -> None:
        """Process bytes from the client. They may be parts of fragments, or several fragments."""
        if self.broken:
            return
        self._input += data
        while len(self._input) >= COMMON.size and not self.broken and not self.waits:
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

    def close(self) -> None:
        """Abandon all pending calls, because the transport has ended."""
        self.broken = True
        self._partial.clear()
        while self._pending:
            self._pending.popitem()[1].abandon()

    def _receive(self, header: CommonHeader, body: bytes) -> None:
        if header.type in (BIND, ALTER):
            self._bind(header, body)
        elif header.type == REQUEST:
            self._request(header, body)
        elif header.type == ORPHANED:
            self._orphaned(header.call_id)
        elif header.type == CANCEL:
            self._cancel(header.call_id)
        else:
            self._fault(header.call_id, 0, FAULT_PROTOCOL)

    def _orphaned(self, call_id: int) -> None:
        """Drop a call that the client no longer needs, without an answer. [C706 12.6.4.10]"""
        self._partial.pop(call_id, None)
        deferred = self._pending.pop(call_id, None)
        if deferred is not None:
            deferred.abandon()

    def _cancel(self, call_id: int) -> None:
        """End a pending call with a fault. Other calls are about to be answered. [C706 12.6.4.6]"""
        deferred = self._pending.pop(call_id, None)
        if deferred is not None:
            deferred.abandon()
            self._fault(call_id, 0, FAULT_CANCEL)

    def _bind(self, header: CommonHeader, body: bytes) -> None:
        if header.auth_length:
            self._refuse(header, NAK_AUTHENTICATION_TYPE)
        else:
            self._acknowledge(header, self._accept(header, body))

    def _refuse(self, header: CommonHeader, reason: int) -> None:
        """Refuse a bind. The answer has the supported versions of the protocol. [C706 12.6.4.5]"""
        self._emit(BIND_NAK, header.call_id, reason.to_bytes(2, "little") + b"\x01\x05\x00")

    def _acknowledge(self, header: CommonHeader, body: bytes) -> None:
        self._emit(BIND_ACK if header.type == BIND else ALTER_RESPONSE, header.call_id, body)

    def _accept(self, header: CommonHeader, body: bytes) -> bytes:
        """Accept each interface that is known here in NDR, reject each other one. Return the answer's body.
        [C706 12.6.4.3, 12.6.4.4]"""
        bind = BIND_BODY.unpack(body)
        position = BIND_BODY.size + 4
        if len(body) < position or body[BIND_BODY.size] > MAX_CONTEXTS:
            raise DecodeError("bad context list")
        accepted: dict[int, Interface] = {}
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
            result = self._features(transfers)
            if result is not None:
                pass
            elif interface is None:
                result = ContextResult(PROVIDER_REJECTION, ABSTRACT_SYNTAX_NOT_SUPPORTED)
            elif NDR not in transfers:
                result = ContextResult(PROVIDER_REJECTION, TRANSFER_SYNTAXES_NOT_SUPPORTED)
            else:
                accepted[item.context_id] = interface
                result = ContextResult(ACCEPTANCE, NO_REASON, NDR)
            results.append(CONTEXT_RESULT.pack(result))
        if len(self._contexts.keys() | accepted.keys()) > MAX_CONTEXTS:
            raise DecodeError("too many contexts")
        self._contexts.update(accepted)
        if header.type == BIND:
            self.max_fragment = max(MIN_FRAGMENT, min(MAX_FRAGMENT, bind.max_receive))
            self._join_group(bind.association_group)
        address = self._address if header.type == BIND else b""
        head = BIND_BODY.pack(BindBody(self.max_fragment, self.max_fragment, self._group))
        head += len(address).to_bytes(2, "little") + address
        head += bytes(-len(head) & 3) + bytes((len(results), 0, 0, 0))
        return head + b"".join(results)

    def _features(self, transfers: set[bytes]) -> ContextResult | None:
        """Return the answer to a bind time feature negotiation, or None if it is an ordinary bind.
        [MS-RPCE 3.3.1.5.3]"""
        return None

    def _join_group(self, wanted: int) -> None:
        self._group = wanted or self._group

    def _request(self, header: CommonHeader, body: bytes) -> None:
        if header.auth_length:
            raise DecodeError("security trailer on a transport that brings its own security")
        self._collect(header, REQUEST_BODY.unpack(body), body[REQUEST_BODY.size :], None)

    def _collect(self, header: CommonHeader, request: RequestBody, stub: bytes, security: Any) -> None:
        """Join the fragments of a call and run it after the last one. [C706 12.6.4.9]

        ``stub`` begins with the object's UUID if the header's flags say so.
        """
        if header.flags & OBJECT_UUID:
            if len(stub) < 16:
                raise DecodeError("no object UUID")
            stub = stub[16:]
        call_id = header.call_id
        if header.flags & FIRST_FRAGMENT:
            if len(self._partial) >= MAX_PARTIAL_CALLS:
                self._partial.clear()
                raise DecodeError("too many calls begun and not finished")
            if call_id in self._pending:
                raise DecodeError("call identifier in use")
            self._partial[call_id] = Call(call_id, request, security)
        call = self._partial.get(call_id)
        if call is None or call.security is not security:
            raise DecodeError("fragment of no call")
        if sum(len(entry.stub) for entry in self._partial.values()) + len(stub) > self.max_stub:
            self._partial.clear()
            raise DecodeError("request too long")
        call.stub += stub
        if header.flags & LAST_FRAGMENT:
            del self._partial[call_id]
            self._run(call)

    def _run(self, call: Call) -> None:
        interface = self._contexts.get(call.request.context_id)
        if interface is None:
            self._fault(call.call_id, call.request.context_id, FAULT_UNKNOWN_INTERFACE)
            return
        operation = interface.operations.get(call.request.opnum)
        if operation is None:
            self._fault(call.call_id, call.request.context_id, FAULT_OPNUM_RANGE)
            return
        if len(self._pending) >= MAX_PENDING_CALLS:
            self._fault(call.call_id, call.request.context_id, FAULT_SERVER_TOO_BUSY)
            return
        try:
            answer = operation(bytes(call.stub))
        except Fault as error:
            self._fault(call.call_id, call.request.context_id, error.status)
            return
        except Exception:
            log.exception("RPC operation %d failed", call.request.opnum)
            self._fault(call.call_id, call.request.context_id, FAULT_UNSPECIFIED)
            return
        call.stub.clear()
        if isinstance(answer, Deferred):
            self._pending[call.call_id] = answer
            answer.wait(lambda result: self._finish(call, result))
        else:
            self._respond(call, answer)

    @property
    def has_pending_calls(self) -> bool:
        """Whether a call waits for its answer."""
        return bool(self._pending)

    def _finish(self, call: Call, result: bytes | Fault) -> None:
        self._pending.pop(call.call_id, None)
        if isinstance(result, Fault):
            self._fault(call.call_id, call.request.context_id, result.status)
        else:
            self._respond(call, result)

    def _room(self, call: Call) -> int:
        """Return the bytes of stub that fit one fragment."""
        return self.max_fragment - COMMON.size - REQUEST_BODY.size

    def _respond(self, call: Call, answer: bytes) -> None:
        room = self._room(call)
        context_id = call.request.context_id
        for start in range(0, max(len(answer), 1), room):
            part = answer[start : start + room]
            flags = (FIRST_FRAGMENT if not start else 0) | (LAST_FRAGMENT if start + room >= len(answer) else 0)
            body = REQUEST_BODY.pack(RequestBody(len(answer) - start, context_id, 0))
            self._emit_response(call, flags, body, part)

    def _emit_response(self, call: Call, flags: int, body: bytes, stub: bytes) -> None:
        self._emit(RESPONSE, call.call_id, body + stub, flags)

    def _fault(self, call_id: int, context_id: int, status: int) -> None:
        body = REQUEST_BODY.pack(RequestBody(0, context_id, 0)) + status.to_bytes(4, "little") + bytes(4)
        self._emit(FAULT, call_id, body)

    def _emit(
        self, kind: int, call_id: int, body: bytes, flags: int = FIRST_FRAGMENT | LAST_FRAGMENT, auth_length: int = 0
    ) -> None:
        """Append a fragment to the output. ``auth_length`` is the size of the verifier at the end of ``body``, in
        bytes."""
        length = COMMON.size + len(body)
        header = CommonHeader(type=kind, flags=flags, fragment_length=length, auth_length=auth_length, call_id=call_id)
        self.output.append(COMMON.pack(header) + body)
