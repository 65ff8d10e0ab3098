"""An association with security of its own: NTLM, SPNEGO and Kerberos in the binds, integrity and privacy of calls.
[MS-RPCE 3.3.1.5, 3.3.3.5]"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.guessing import LogonDelayed
from smb3server.rpc.dcerpc import (
    ALTER,
    ALTER_RESPONSE,
    BIND,
    BIND_ACK,
    COMMON,
    FAULT_ACCESS_DENIED,
    FAULT_PROTOCOL,
    FIRST_FRAGMENT,
    LAST_FRAGMENT,
    NAK_AUTHENTICATION_TYPE,
    NEGOTIATE_ACK,
    OBJECT_UUID,
    REQUEST_BODY,
    RESPONSE,
    Call,
    CommonHeader,
    ContextResult,
    Fault,
    Interface,
    RpcEndpoint,
)
from smb3server.rpc.security import AUTH_TRAILER, PROVIDERS, AuthTrailer, Level, SecurityContext, SecurityError
from smb3server.state.events import Events
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

AUTH3 = 16
HEADER_SIGNING = 0x04
"""PFC_SUPPORT_HEADER_SIGN, in binds and their answers. [MS-RPCE 2.2.2.3]"""
NAK_REASON_NOT_SPECIFIED = 0
MAX_SECURITY_CONTEXTS = 8
MAX_LEGS = 8
"""Tokens of one authentication."""
_FEATURES_PREFIX = bytes.fromhex("2c1cb76c12984045")
"""Transfer syntax that stands for features. The next two bytes are a bit mask. [MS-RPCE 3.3.1.5.3]"""
_FEATURES = 0x03
"""Supported features: several security contexts on one connection, and keeping the connection when a call is
orphaned."""
_PAD = 16
"""Stubs are padded to a multiple of this before the trailer. [MS-RPCE 2.2.2.11]"""


class AssociationGroup:
    """Connections of one client that share context handles. [C706 12.6.3.2]

    ``on_rundown`` callbacks are called when the last connection has left.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        # Invariant: the number of associations that have joined and not left.
        self.connections = 0
        self.on_rundown: list[Callable[[], None]] = []
        self.attachments: set[Hashable] = set()
        """State that interfaces attach to the group."""


class AssociationGroups:
    """The association groups of one endpoint."""

    def __init__(self) -> None:
        # Invariant: every group has at least one connection, and its own number as key.
        self._groups: dict[int, AssociationGroup] = {}
        self._last = 0

    def join(self, number: int) -> AssociationGroup:
        """Add a connection to the group of this number, or to a new group with a number chosen here. Return the
        group."""
        group = self._groups.get(number)
        if group is None:
            self._last = self._last % 0xFFFFFFFF + 1
            while self._last in self._groups:
                self._last = self._last % 0xFFFFFFFF + 1
            group = self._groups[self._last] = AssociationGroup(self._last)
        group.connections += 1
        return group

    def leave(self, group: AssociationGroup) -> None:
        """Remove a connection from its group. Call ``on_rundown`` after the last one."""
        group.connections -= 1
        if group.connections == 0:
            del self._groups[group.number]
            for callback in group.on_rundown:
                callback()


class Association(RpcEndpoint):
    """One connection's association. ``broken`` means that the connection must be closed after the output was sent."""

    def __init__(
        self,
        address: str,
        interfaces: Callable[[Association], list[Interface]],
        new_acceptor: Callable[[], Acceptor],
        groups: AssociationGroups,
    ) -> None:
        super().__init__(address, interfaces(self))
        self.caller: SecurityContext | None = None
        """Security context of the call that is being started. None means an unauthenticated call. Operations must read
        it before they return."""
        self.group: AssociationGroup | None = None
        """The group, from the first bind on."""
        self.authenticated = False
        """Whether the client has authenticated in at least one security context."""
        self.local_host = ""
        """Address at which the client reached this endpoint."""
        self.peer_host = ""
        """The client's address, by which failed logons are counted. Empty for a pipe."""
        self.client = ""
        """Who the log says the client is, if not ``peer_host``."""
        self.events = Events()
        """Is told of failed logons. Set it to the server's own, which counts them."""
        self.flush: Callable[[], None] = lambda: None
        """Called when an answer is ready outside ``feed``."""
        self.on_delay: Callable[[float], None] = lambda seconds: None
        """Called with the seconds until a delayed logon may be verified: stop reading, and call ``resume`` then."""
        self._new_acceptor = new_acceptor
        self._groups = groups
        self._header_signing = False
        self._security: dict[int, SecurityContext] = {}
        self._legs = 0
        self._delayed: tuple[CommonHeader, bytes] | None = None
        """The fragment whose logon is delayed."""

    def close(self) -> None:
        """End the association, and leave its group."""
        super().close()
        if self.group is not None:
            group, self.group = self.group, None
            self._groups.leave(group)

    def _receive(self, header: CommonHeader, body: bytes) -> None:
        try:
            if header.type == AUTH3:
                self._third_leg(header, body)
            else:
                super()._receive(header, body)
        except LogonDelayed as delay:
            self._delayed = header, body
            self.waits = True
            self.on_delay(delay.seconds)

    def resume(self) -> None:
        """Process the fragment whose logon was delayed, and the input behind it."""
        delayed, self._delayed = self._delayed, None
        self.waits = False
        if delayed is not None and not self.broken:
            header, body = delayed
            try:
                self._receive(header, body)
            except DecodeError as error:
                log.debug("malformed RPC fragment: %s", error)
                self._fault(header.call_id, 0, FAULT_PROTOCOL)
        self.feed(b"")

    def _trailer(self, header: CommonHeader, body: bytes) -> tuple[AuthTrailer, int]:
        """Return the trailer, and the offset in the body where it begins. Raises ``DecodeError``."""
        start = len(body) - header.auth_length - AUTH_TRAILER.size
        if start < 0:
            raise DecodeError("verifier longer than its fragment")
        trailer = AUTH_TRAILER.unpack(body, start)
        if trailer.pad_length > start:
            raise DecodeError("padding longer than its fragment")
        return trailer, start

    # Binds

    def _bind(self, header: CommonHeader, body: bytes) -> None:
        if header.type == BIND and self.group is not None:
            raise DecodeError("second bind")
        if header.type == ALTER and self.group is None:
            raise DecodeError("alter_context before bind")
        if not header.auth_length:
            self._acknowledge(header, self._accept(header, body))
            return
        trailer, start = self._trailer(header, body)
        if trailer.type not in PROVIDERS or not Level.CONNECT <= trailer.level <= Level.PRIVACY:
            self._deny(header, NAK_AUTHENTICATION_TYPE)
            return
        if header.type == BIND:
            self._header_signing = bool(header.flags & HEADER_SIGNING)
        try:
            token = self._step(trailer, body[start + AUTH_TRAILER.size :])
        except SecurityError as error:
            self._refused(trailer, error)
            self._deny(header, NAK_REASON_NOT_SPECIFIED)
            return
        answer = self._accept(header, body[: start - trailer.pad_length])
        flags = FIRST_FRAGMENT | LAST_FRAGMENT | (header.flags & HEADER_SIGNING)
        if token:
            answer += bytes(-len(answer) & 3)
            answer += AUTH_TRAILER.pack(trailer._replace(pad_length=0, reserved=0)) + token
        kind = BIND_ACK if header.type == BIND else ALTER_RESPONSE
        self._emit(kind, header.call_id, answer, flags, len(token))

    def _deny(self, header: CommonHeader, reason: int) -> None:
        """Refuse a bind, or answer an alter_context with a fault. The connection ends in both cases."""
        if header.type == BIND:
            self._refuse(header, reason)
        else:
            self._fault(header.call_id, 0, FAULT_ACCESS_DENIED)
        self.broken = True

    def _third_leg(self, header: CommonHeader, body: bytes) -> None:
        """Process an rpc_auth_3. It has no answer: the result shows in later calls. [MS-RPCE 2.2.2.5]"""
        trailer, start = self._trailer(header, body)
        if trailer.context_id not in self._security:
            raise DecodeError("third leg of no authentication")
        try:
            self._step(trailer, body[start + AUTH_TRAILER.size :])
        except SecurityError as error:
            self._refused(trailer, error)
            del self._security[trailer.context_id]

    def _refused(self, trailer: AuthTrailer, error: SecurityError) -> None:
        """Tell the operator of a failed logon."""
        context = self._security.get(trailer.context_id)
        self.events.rpc_logon_refused(
            self.client or self.peer_host, context.claimed if context is not None else "", error, error.reason
        )

    def _step(self, trailer: AuthTrailer, token: bytes) -> bytes:
        context = self._security.get(trailer.context_id)
        if context is None:
            if len(self._security) >= MAX_SECURITY_CONTEXTS:
                raise SecurityError("too many security contexts")
            acceptor = self._new_acceptor()
            acceptor.address = self.peer_host
            context = SecurityContext(acceptor, trailer, self._header_signing)
            self._legs = 0
        elif context.identity is not None or (context.type, context.level) != (trailer.type, trailer.level):
            raise SecurityError("security context changed or used again")
        self._legs += 1
        if self._legs > MAX_LEGS:
            raise SecurityError("authentication does not end")
        answer = context.step(token)
        self._security[trailer.context_id] = context
        self.authenticated = self.authenticated or context.identity is not None
        return answer

    def _features(self, transfers: set[bytes]) -> ContextResult | None:
        for transfer in transfers:
            if transfer.startswith(_FEATURES_PREFIX):
                return ContextResult(NEGOTIATE_ACK, int.from_bytes(transfer[8:10], "little") & _FEATURES)
        return None

    def _join_group(self, wanted: int) -> None:
        self.group = self._groups.join(wanted)
        self._group = self.group.number

    # Calls

    def _request(self, header: CommonHeader, body: bytes) -> None:
        request = REQUEST_BODY.unpack(body)
        head = REQUEST_BODY.size + (16 if header.flags & OBJECT_UUID else 0)
        if not header.auth_length:
            # Level CONNECT authenticates the connection, but does not protect calls.
            contexts = [entry for entry in self._security.values() if entry.identity is not None]
            security = contexts[0] if len(contexts) == 1 and not contexts[0].protects else None
            if security is None and self._security:
                self._fail_call(header, request.context_id, "unprotected call")
                return
            self._collect(header, request, body[REQUEST_BODY.size :], security)
            return
        trailer, start = self._trailer(header, body)
        if start < head:
            raise DecodeError("trailer within the header")
        security = self._security.get(trailer.context_id)
        if security is None or security.identity is None or trailer.level != security.level or not security.protects:
            self._fail_call(header, request.context_id, "no such security context")
            return
        trailer_end = start + AUTH_TRAILER.size
        try:
            stub = security.unprotect(
                COMMON.pack(header) + body[:head], body[head:start], body[start:trailer_end], body[trailer_end:]
            )
        except SecurityError as error:
            self._fail_call(header, request.context_id, str(error))
            return
        if trailer.pad_length > len(stub):
            raise DecodeError("padding longer than the stub")
        stub = stub[: len(stub) - trailer.pad_length]
        self._collect(header, request, body[REQUEST_BODY.size : head] + stub, security)

    def _fail_call(self, header: CommonHeader, context_id: int, reason: str) -> None:
        """Answer with a fault and end the connection, because the sequence numbers of the two sides no longer match."""
        log.info("RPC call refused: %s", reason)
        self._fault(header.call_id, context_id, FAULT_ACCESS_DENIED)
        self.broken = True

    def _run(self, call: Call) -> None:
        self.caller = call.security
        super()._run(call)
        self.caller = None

    def _finish(self, call: Call, result: bytes | Fault) -> None:
        super()._finish(call, result)
        self.flush()

    def _room(self, call: Call) -> int:
        security: SecurityContext | None = call.security
        room = super()._room(call)
        if security is None or not security.protects:
            return room
        return (room - AUTH_TRAILER.size - security.verifier_size()) // _PAD * _PAD

    def _emit_response(self, call: Call, flags: int, body: bytes, stub: bytes) -> None:
        security: SecurityContext | None = call.security
        if security is None or not security.protects:
            super()._emit_response(call, flags, body, stub)
            return
        pad = -len(stub) % _PAD
        stub += bytes(pad)
        trailer = AUTH_TRAILER.pack(AuthTrailer(security.type, security.level, pad, 0, security.context_id))
        try:
            verifier_size, verifier = -1, b""
            # The size of a verifier is certain only after the first one. If it was wrong, sign again with the right
            # header.
            while verifier_size != len(verifier):
                verifier_size = security.verifier_size()
                length = COMMON.size + len(body) + len(stub) + len(trailer) + verifier_size
                header = COMMON.pack(CommonHeader(5, 0, RESPONSE, flags, fragment_length=length,
                                                  auth_length=verifier_size, call_id=call.call_id))  # fmt: skip
                protected, verifier = security.protect(header + body, stub, trailer)
                security.note_verifier(verifier)
        except SecurityError as error:
            log.warning("RPC answer cannot be protected: %s", error)
            self.broken = True
            return
        self.output.append(b"".join((header, body, protected, trailer, verifier)))
