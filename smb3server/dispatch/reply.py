"""Outgoing messages: header, credits, padding, signature, encryption. [MS-SMB2 3.3.4.1]"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from smb3server.compression.transform import ON_THREAD_FROM
from smb3server.crypto.encryption import TRANSFORM_SIZE
from smb3server.crypto.envelope import seal, seal_in, sign_reply
from smb3server.dispatch.chain import Reply
from smb3server.dispatch.request import Request, Response
from smb3server.wire.error import ERROR_RESPONSE, ErrorResponse
from smb3server.wire.header import HEADER_SIZE, PROTOCOL_ID, HeaderFlags
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.compression.transform import Packed
    from smb3server.crypto.signing import Signer
    from smb3server.state.objects import Connection, Session

REPLY_HEADER = struct.Struct("<4sHHIHHIIQQQ16x")
"""SMB2 packet header without a signature. AsyncId is one 64-bit field here, and so is the pair of Reserved and TreeId
that it replaces. [MS-SMB2 2.2.1]"""
_ERROR_CONTEXT = struct.Struct("<II")
_EMPTY_ERROR = ERROR_RESPONSE.pack(ErrorResponse()) + b"\0"
_NEXT_COMMAND = struct.Struct("<I")
_PADDING = tuple(bytes(n) for n in range(8))
_NO_MESSAGE_ID = 0xFFFFFFFFFFFFFFFF
_REPLY = int(HeaderFlags.SERVER_TO_REDIR)
_ASYNC = int(HeaderFlags.ASYNC_COMMAND)
_SIGNED = int(HeaderFlags.SIGNED)
_WITHOUT_SESSION = (NtStatus.USER_SESSION_DELETED, NtStatus.INVALID_PARAMETER)
"""Statuses of a command whose session does not exist, and of a command related to it."""
ECHOED_FLAGS = int(HeaderFlags.PRIORITY_MASK | HeaderFlags.RELATED_OPERATIONS)
"""Flags of a request that its reply has as well."""


def error_body(error: StatusError, dialect: int) -> bytes:
    """Return the body of an error response. In dialect 3.1.1 the data is in an error context. [MS-SMB2 2.2.2,
    2.2.2.1]"""
    data = error.data
    if not data:
        return _EMPTY_ERROR
    if dialect < Dialect.SMB_3_1_1:
        return ERROR_RESPONSE.pack(ErrorResponse(byte_count=len(data))) + data
    fixed = ErrorResponse(error_context_count=1, byte_count=len(data) + _ERROR_CONTEXT.size)
    return ERROR_RESPONSE.pack(fixed) + _ERROR_CONTEXT.pack(len(data), error.error_id) + data


class Fence(Protocol):
    """Keeps a node of a cluster from answering when another node may own the share by now."""

    def is_fenced(self, connection: Connection) -> bool:
        """Return whether nothing may be sent on ``connection``."""
        ...


class ReplyWriter:
    """Builds and sends the messages of one connection."""

    def __init__(self, connection: Connection, fence: Fence) -> None:
        self.connection = connection
        self._fence = fence

    def reply(self, request: Request, result: Response | StatusError) -> Reply:
        """Return the final reply to a request. It grants credits unless an interim reply has done so."""
        connection = self.connection
        header = request.header
        flags = _REPLY | header.flags & ECHOED_FLAGS
        session = request.session
        session_id = session.session_id if session is not None else header.session_id
        if request.async_id:
            flags |= _ASYNC
            target, credits = request.async_id, 0
        else:
            tree_id = request.tree.tree_id if request.tree is not None else header.tree_id
            target = tree_id << 32
            credits = connection.command_sequence_window.grant(header.credits, connection.credit_limit)
        packed = bytearray(
            REPLY_HEADER.pack(
                PROTOCOL_ID,
                HEADER_SIZE,
                header.credit_charge,
                result.status,
                header.command,
                credits,
                flags,
                0,
                header.message_id,
                target,
                session_id,
            )
        )
        signer = request.signer or self.signer_for(request)
        if result.status in _WITHOUT_SESSION and session is None and signer is None and header.flags & _SIGNED:
            # There is no key to sign with. smbtorture: does not check the signature then, but requires the flag.
            packed[16] |= _SIGNED
        if not isinstance(result, Response):
            result = Response((error_body(result, connection.dialect),), result.status)
        segments, data = result.segments, result.data
        size = HEADER_SIZE + sum(map(len, segments)) + (data.length if data is not None else 0) + 7 & -8
        return Reply(
            packed,
            segments,
            header.message_id,
            size,
            signer,
            result.on_sent,
            result.invalidate,
            request.on_encoded,
            data,
            result.frame,
            result.packed,
            result.compress,
        )

    def signer_for(self, request: Request) -> Signer | None:
        """Return the signer of the reply, or None if it is not signed. [MS-SMB2 3.3.4.1.1]"""
        session = request.session
        if session is None or request.encrypted or not (request.signed or session.signing_required):
            return None
        return session.signer_on(self.connection)

    def interim(self, request: Request) -> Reply:
        """Return the interim reply to a request. [MS-SMB2 3.3.4.2]

        It is never signed: with AES-GMAC its nonce would be that of the final reply, and clients do not verify it."""
        connection = self.connection
        header = request.header
        session = request.session
        credits = connection.command_sequence_window.grant(header.credits, connection.credit_limit)
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID,
            HEADER_SIZE,
            header.credit_charge,
            NtStatus.PENDING,
            header.command,
            credits,
            _REPLY | _ASYNC,
            0,
            header.message_id,
            request.async_id,
            session.session_id if session is not None else header.session_id,
        )
        return Reply(bytearray(packed), (_EMPTY_ERROR,), header.message_id)

    def notification(self, segments: Sequence[Buffer], command: int, session: Session | None = None) -> Reply:
        """Return a message without MessageId, tree connect and credits. [MS-SMB2 3.3.4.6]

        ``session``: the one that it names, by whose key it is signed. Only the last message of a session may have one:
        with AES-GMAC every further one would repeat its nonce."""
        session_id = session.session_id if session is not None else 0
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID, HEADER_SIZE, 0, NtStatus.SUCCESS, command, 0, _REPLY, 0, _NO_MESSAGE_ID, 0, session_id
        )
        signs = session is not None and session.signing_required and not session.encrypt_data
        signer = session.signer_on(self.connection) if session is not None and signs else None
        return Reply(bytearray(packed), segments, _NO_MESSAGE_ID, signer=signer)

    def send(
        self, replies: Sequence[Reply], encrypt_for: Session | None, then: Callable[[], None] | None = None
    ) -> None:
        """Send ``replies`` as one message. Each is signed on its own, and all are encrypted together.

        ``then`` is called when the message is sent or the connection has ended."""
        if self._fence.is_fenced(self.connection):
            self._drop(replies)
            return
        segments: list[Buffer] = []
        last = len(replies) - 1
        on_sent: Callable[[], None] | None = None
        callbacks: list[Callable[[], None]] = []
        invalidate: int | None = None
        compress: Callable[[Buffer], Packed | None] | None = None
        lead = 0
        for index, reply in enumerate(replies):
            header = reply.header
            part: list[Buffer] = [header, *reply.segments]
            if last:
                length = sum(map(len, part))
                padding = -length & 7
                if padding:
                    part.append(_PADDING[padding])
                if index < last:
                    _NEXT_COMMAND.pack_into(header, 20, length + padding)
            if reply.signer is not None and encrypt_for is None:
                sign_reply(header, part, reply.signer, reply.message_id)
            if reply.on_encoded is not None:
                reply.on_encoded(part)
            if reply.compress is not None and compress is None:
                compress, lead = reply.compress, len(segments) + len(reply.segments)
            segments += part
            if reply.on_sent is not None:
                callbacks.append(reply.on_sent)
            if reply.invalidate is not None:
                invalidate = reply.invalidate
        if callbacks:
            on_sent = callbacks[0] if len(callbacks) == 1 else lambda: _call_all(callbacks)
        transport = self.connection.transport
        data = replies[-1].data
        if data is not None:
            if last or replies[-1].signer is not None or encrypt_for is not None:
                raise ValueError("data out of a file in a message that needs its bytes")
            transport.send(segments, invalidate, on_sent if then is None else _both(on_sent, then), data)
            return
        frame = replies[-1].frame
        packed = replies[-1].packed
        if packed is not None and not last:
            segments, frame = packed.message(segments[:-1]), None
            self.connection.compressed.sends(packed.original, packed.size)
        elif compress is not None:
            segments, frame = self._compressed(segments, lead, compress), None
        if encrypt_for is None or encrypt_for.cipher is None:
            transport.send(segments, invalidate, on_sent if then is None else _both(on_sent, then))
            return
        if frame is not None and frame.data_at == TRANSFORM_SIZE + sum(map(len, segments[:-1])):
            message, release = seal_in(frame.memory, segments, encrypt_for.cipher), on_sent
        else:
            message, release = seal(segments, encrypt_for.cipher, transport.acquire)
            if on_sent is not None:
                on_sent()
        transport.send((message,), invalidate, release if then is None else _both(release, then))

    def _compressed(
        self, segments: list[Buffer], lead: int, compress: Callable[[Buffer], Packed | None]
    ) -> list[Buffer]:
        """Return a message of several replies compressed behind the first ``lead`` segments, if that is worth it. Long
        ones are left alone: others would have to wait for them. [MS-SMB2 3.3.4.1.5]"""
        if sum(map(len, segments[lead:])) >= ON_THREAD_FROM:
            return segments
        packed = compress(b"".join(segments[lead:]))
        if packed is None:
            return segments
        self.connection.compressed.sends(packed.original, packed.size)
        return packed.message(segments[:lead])

    def _drop(self, replies: Sequence[Reply]) -> None:
        """Drop replies and disconnect, because another node may be answering by now."""
        self.connection.disconnect("this node is fenced")
        for reply in replies:
            if reply.on_sent is not None:
                reply.on_sent()


def _both(first: Callable[[], None] | None, second: Callable[[], None]) -> Callable[[], None]:
    return second if first is None else lambda: _call_all((first, second))


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
