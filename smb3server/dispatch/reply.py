"""Outgoing messages: header, credits, padding, signature, encryption (MS-SMB2 3.3.4.1)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from smb3server.crypto.encryption import TAG_SIZE, TRANSFORM_SIZE
from smb3server.dispatch.chain import Reply
from smb3server.dispatch.request import Request, Response
from smb3server.wire.error import ERROR_RESPONSE, ErrorResponse
from smb3server.wire.header import HEADER_SIZE, PROTOCOL_ID, SIGNATURE_OFFSET, HeaderFlags
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.crypto.signing import Signer
    from smb3server.state.objects import Connection, Session

REPLY_HEADER = struct.Struct("<4sHHIHHIIQQQ16x")
"""SMB2 packet header without a signature (2.2.1). The AsyncId and the pair of Reserved and TreeId are one 64-bit field
here."""
_ERROR_CONTEXT = struct.Struct("<II")
_EMPTY_ERROR = ERROR_RESPONSE.pack(ErrorResponse()) + b"\0"
_NEXT_COMMAND = struct.Struct("<I")
_PADDING = tuple(bytes(n) for n in range(8))
_NO_MESSAGE_ID = 0xFFFFFFFFFFFFFFFF
_REPLY = int(HeaderFlags.SERVER_TO_REDIR)
_ASYNC = int(HeaderFlags.ASYNC_COMMAND)
_SIGNED = int(HeaderFlags.SIGNED)
_WITHOUT_SESSION = (NtStatus.USER_SESSION_DELETED, NtStatus.INVALID_PARAMETER)
"""What a command gets whose session is not known, and one that is related to it."""
ECHOED_FLAGS = int(HeaderFlags.PRIORITY_MASK | HeaderFlags.RELATED_OPERATIONS)
"""What a reply has of its request's flags."""


def error_body(error: StatusError, dialect: int) -> bytes:
    """2.2.2; with one error context around the data in 3.1.1 (2.2.2.1)."""
    data = error.data
    if not data:
        return _EMPTY_ERROR
    if dialect < Dialect.SMB_3_1_1:
        return ERROR_RESPONSE.pack(ErrorResponse(byte_count=len(data))) + data
    fixed = ErrorResponse(error_context_count=1, byte_count=len(data) + _ERROR_CONTEXT.size)
    return ERROR_RESPONSE.pack(fixed) + _ERROR_CONTEXT.pack(len(data), error.error_id) + data


class Fence(Protocol):
    """Keeps a node from answering when another one may be answering by now."""

    def is_fenced(self, connection: Connection) -> bool: ...


class ReplyWriter:
    """One connection's."""

    def __init__(self, connection: Connection, fence: Fence) -> None:
        self.connection = connection
        self._fence = fence

    def reply(self, request: Request, result: Response | StatusError) -> Reply:
        """Header and body of a final reply; it grants credits, unless an interim one did."""
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
        signer = self._signer_for(request)
        if result.status in _WITHOUT_SESSION and session is None and signer is None and header.flags & _SIGNED:
            # There is no key to sign with. smbtorture: does without the signature, but wants the flag.
            packed[16] |= _SIGNED
        if isinstance(result, Response):
            segments, on_sent, invalidate = result.segments, result.on_sent, result.invalidate
        else:
            segments, on_sent, invalidate = (error_body(result, connection.dialect),), None, None
        size = HEADER_SIZE + sum(map(len, segments)) + 7 & -8
        return Reply(packed, segments, header.message_id, size, signer, on_sent, invalidate, request.on_encoded)

    def _signer_for(self, request: Request) -> Signer | None:
        """Return what signs the reply; None where it is not signed. [MS-SMB2 3.3.4.1.1]"""
        if request.signer is not None:
            return request.signer
        session = request.session
        if session is None or request.encrypted or not (request.signed or session.signing_required):
            return None
        channel = session.channel_list.get(self.connection)
        return channel.signer if channel is not None else None

    def interim(self, request: Request) -> Reply:
        """3.3.4.2. Never signed: with AES-GMAC its nonce would be the final reply's, and clients do not verify it."""
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

    def notification(self, segments: Sequence[Buffer], command: int) -> Reply:
        """3.3.4.6: no MessageId, no session, no tree connect, no credits, no signature."""
        packed = REPLY_HEADER.pack(
            PROTOCOL_ID, HEADER_SIZE, 0, NtStatus.SUCCESS, command, 0, _REPLY, 0, _NO_MESSAGE_ID, 0, 0
        )
        return Reply(bytearray(packed), segments, _NO_MESSAGE_ID)

    def send(
        self, replies: Sequence[Reply], encrypt_for: Session | None, then: Callable[[], None] | None = None
    ) -> None:
        """One message of all ``replies``: of several each padded to eight bytes, each signed, encrypted as one.
        ``then`` is called when it is sent or the connection gone."""
        if self._fence.is_fenced(self.connection):
            self._drop(replies)
            return
        segments: list[Buffer] = []
        last = len(replies) - 1
        on_sent: Callable[[], None] | None = None
        callbacks: list[Callable[[], None]] = []
        invalidate: int | None = None
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
                header[16] |= _SIGNED
                header[SIGNATURE_OFFSET:] = reply.signer.sign(part, reply.message_id)
            if reply.on_encoded is not None:
                reply.on_encoded(part)
            segments += part
            if reply.on_sent is not None:
                callbacks.append(reply.on_sent)
            if reply.invalidate is not None:
                invalidate = reply.invalidate
        if callbacks:
            on_sent = callbacks[0] if len(callbacks) == 1 else lambda: _call_all(callbacks)
        transport = self.connection.transport
        if encrypt_for is None or encrypt_for.cipher is None:
            transport.send(segments, invalidate, on_sent if then is None else _both(on_sent, then))
            return
        length = sum(map(len, segments))
        buffer = transport.acquire(TRANSFORM_SIZE + length + TAG_SIZE)
        encrypt_for.cipher.encrypt(segments, length, buffer.view)
        if on_sent is not None:
            on_sent()
        transport.send(
            (buffer.view[: TRANSFORM_SIZE + length],),
            invalidate,
            buffer.release if then is None else _both(buffer.release, then),
        )

    def _drop(self, replies: Sequence[Reply]) -> None:
        """This node may not answer any more: somebody else may be answering by now."""
        self.connection.disconnect("this node is fenced")
        for reply in replies:
            if reply.on_sent is not None:
                reply.on_sent()


def _both(first: Callable[[], None] | None, second: Callable[[], None]) -> Callable[[], None]:
    return second if first is None else lambda: _call_all((first, second))


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
