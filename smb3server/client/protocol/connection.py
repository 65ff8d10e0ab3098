"""A client's connection: requests, MessageIds, credits, asynchronous replies, negotiation. [MS-SMB2 3.2.1.2]"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from smb3server.client.protocol import negotiation
from smb3server.client.protocol.exposed import ExposedPool
from smb3server.client.protocol.messages import (
    CREDIT_SIZE,
    Call,
    Chains,
    Part,
    Payloads,
    Protection,
    Reply,
    ServerError,
)
from smb3server.client.protocol.silence import Silence
from smb3server.compression.benefit import LONG, Benefit, Counts
from smb3server.crypto import preauth
from smb3server.crypto.encryption import TRANSFORM_PROTOCOL_ID, TRANSFORM_SIZE
from smb3server.crypto.envelope import EnvelopeError, is_from_server, seal, sign_request, unseal
from smb3server.wire.compression import COMPRESSION_PROTOCOL_ID, COMPRESSION_TRANSFORM
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, Command, Header, HeaderFlags
from smb3server.wire.negotiate import Capability, Dialect
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer, new_record
from smbdirect.errors import ConnectionLost, DecodeError, ProtocolError
from smbdirect.message_transport import InboundMessage, MessageTransport, room_of

if TYPE_CHECKING:
    # Most connections need none of these modules, and each takes its time to load.
    from smb3server.client.protocol.messages import Break
    from smb3server.compression.transform import Packed

NO_MESSAGE_ID = 0xFFFFFFFFFFFFFFFF
CLOSE_TIMEOUT = 5.0
"""Seconds that ``close`` gives the server to receive the queued messages."""
KEEP_IN_PLACE = 16384
"""Bytes of a response from which it is passed on without a copy; smaller ones are copied out of the
transport's buffer. Bytes of a payload from which it is sent without a copy.
"""
_ASYNC = int(HeaderFlags.ASYNC_COMMAND)
_SIGNED = int(HeaderFlags.SIGNED)
_RELATED = int(HeaderFlags.RELATED_OPERATIONS)
# Looking up the member of an enumeration takes longer than comparing it, and these are compared for each message.
_FIRST_DIALECT = int(Dialect.SMB_2_0_2)
_PENDING, _SESSION_DELETED = int(NtStatus.PENDING), int(NtStatus.USER_SESSION_DELETED)
_WRITE = int(Command.WRITE)
_NO_SIGNATURE = bytes(16)


class Requests:
    """The requests of one connection, of which any number may be in flight. It is not thread-safe."""

    def __init__(self, transport: MessageTransport, credits_wanted: int = 256) -> None:
        self.transport = transport
        self.credits_wanted = credits_wanted
        """Credits that the client tries to hold; servers may grant fewer."""
        self.credits = 1
        self.client_guid = os.urandom(16)
        self.dialect = 0
        self.negotiated = negotiation.Negotiated()
        self.supports_multi_credit = False
        """Whether one request may cost several credits."""
        self.offered: tuple[Sequence[int], negotiation.Offer] = (negotiation.DIALECTS, negotiation.Offer())
        self.preauth_hash = preauth.INITIAL_HASH
        self.sessions: dict[int, Protection] = {}
        self.on_break: Callable[[Break], None] = lambda _: None
        """Called with each oplock or lease break notification. [MS-SMB2 2.2.23]"""
        self.on_closed: Callable[[BaseException | None], None] = lambda _: None
        self.closed: BaseException | None = None
        self.exposed = ExposedPool(transport.rdma) if transport.rdma is not None else None
        """Buffers for READ and WRITE by RDMA; None if the transport has no RDMA."""
        self.payloads = Payloads()
        self.compressed = Counts()
        self._benefit_of_chains = Benefit()
        self._expanding = 0
        """Messages that worker threads decompress."""
        # Invariant: holds every request without a final response, by MessageId.
        self._calls: dict[int, Call] = {}
        self._next_message_id = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self.chains = Chains()
        self._silence = Silence(self._calls, self._probe, self._give_up)
        transport.start(self._receive, self._lost)

    @classmethod
    async def connect(
        cls,
        transport: MessageTransport,
        dialects: Sequence[int] = negotiation.DIALECTS,
        offer: negotiation.Offer | None = None,
        credits_wanted: int = 256,
        client_guid: bytes | None = None,
    ) -> Self:
        """Negotiate on a fresh transport and return the connection. [MS-SMB2 3.2.4.2.2.2]

        ``client_guid`` is that of the session's first connection if this one is to become a further channel of the
        session. Raises ``ServerError``, ``ConnectionLost``, and ``ProtocolError`` if the server chose something that
        was not offered.
        """
        client = cls(transport, credits_wanted)
        client.client_guid = client_guid or client.client_guid
        try:
            await client._negotiate(dialects, offer or negotiation.Offer())
        except BaseException:
            transport.abort("negotiation failed")
            raise
        return client

    async def _negotiate(self, dialects: Sequence[int], offer: negotiation.Offer) -> None:
        hashes: list[bytes] = []

        def hash_message(message: Sequence[Buffer]) -> None:
            hashes.append(preauth.extend(hashes[-1] if hashes else preauth.INITIAL_HASH, message))

        self.offered = (dialects, offer)
        body = negotiation.build(dialects, self.client_guid, offer)
        reply = await self.call(Command.NEGOTIATE, [body], on_encoded=hash_message)
        try:
            hash_message([reply.message])
            self.negotiated = negotiation.parse(reply.message, dialects, offer)
        finally:
            reply.release()
        self.dialect = self.negotiated.dialect
        large = bool(self.negotiated.capabilities & Capability.LARGE_MTU)
        self.supports_multi_credit = self.dialect >= Dialect.SMB_2_1 and large
        self.preauth_hash = hashes[-1]

    def limit_answers(self, seconds: float) -> None:
        """Give the server so many seconds for each answer, and for showing that it is there; 0 for as long as it likes.

        A connection without an answer ends, and all that waits on it fails with ``ConnectionLost``. A server that says
        that it works on a request has the same time again; a lock and a watch may last. What a request waits behind
        others of its connection does not count.
        """
        self._silence.limit(seconds)
        self.transport.set_peer_timeout(seconds or None)

    def _give_up(self, why: str) -> None:
        self.transport.abort(why)

    def _probe(self) -> Call | None:
        """Send an ECHO that nobody waits for, if there is a credit for it."""
        if not self.credits or self.closed is not None:
            return None
        call = self._enter(Command.ECHO, 1, None, 0, False, False, 0)
        self._transmit(call.header, [b"\4\0\0\0"], None, False, False)
        return call

    async def echo(self) -> None:
        """Check that the server answers. [MS-SMB2 3.2.4.20]"""
        (await self.call(Command.ECHO, [b"\4\0\0\0"])).release()

    async def close(self) -> None:
        """Send the queued messages, close, and return when the connection has ended.

        A server that does not receive the messages within ``CLOSE_TIMEOUT`` seconds loses the rest.
        """
        self.transport.close("client closes")
        done, _ = await asyncio.wait([self._finished], timeout=CLOSE_TIMEOUT)
        if not done:
            self.transport.abort("the server does not take what is queued")
            await self._finished

    # Sending

    async def call(
        self,
        command: int,
        body: Sequence[Buffer],
        session: Protection | None = None,
        tree_id: int = 0,
        *,
        payload: int = 0,
        accept: Sequence[int] = (NtStatus.SUCCESS,),
        sign: bool = False,
        flags: int = 0,
        packed: Packed | None = None,
        on_encoded: Callable[[Sequence[Buffer]], None] | None = None,
    ) -> Reply:
        """Send one request and wait for its final response.

        ``payload`` is the number of bytes sent or expected; it determines the credit charge. Raises ``ServerError``
        unless the status is in ``accept``, ``ConnectionLost`` if the connection ends first, and the errors of
        ``start``. If the wait is cancelled, SMB2 CANCEL is sent.
        """
        started = await self.start(
            command,
            body,
            session,
            tree_id,
            payload=payload,
            sign=sign,
            flags=flags,
            packed=packed,
            on_encoded=on_encoded,
        )
        try:
            reply = await started.future
        except asyncio.CancelledError:
            self.cancel(started)
            raise
        return reply if reply.header.status in accept else self.check(reply, accept)

    @staticmethod
    def check(reply: Reply, accept: Sequence[int] = (NtStatus.SUCCESS,)) -> Reply:
        """Return the reply; raise ``ServerError`` if its status is not in ``accept``."""
        if reply.header.status not in accept:
            error = ServerError(reply.header.status, error_data(reply.message))
            reply.release()
            raise error
        return reply

    async def finish(self, started: Call) -> Reply:
        """Wait for the final response of a started request."""
        try:
            return await started.future
        except asyncio.CancelledError:
            self.cancel(started)
            raise

    async def finish_chain(self, calls: Sequence[Call]) -> list[Reply]:
        """Wait for the final responses of a started chain."""
        replies: list[Reply] = []
        try:
            for call in calls:
                replies.append(await call.future)
        except asyncio.CancelledError:
            self.cancel(calls[len(replies)])
            raise
        return replies

    async def start(
        self,
        command: int,
        body: Sequence[Buffer],
        session: Protection | None = None,
        tree_id: int = 0,
        *,
        payload: int = 0,
        sign: bool = False,
        flags: int = 0,
        packed: Packed | None = None,
        on_encoded: Callable[[Sequence[Buffer]], None] | None = None,
    ) -> Call:
        """Send one request as soon as there are enough credits, and return it without waiting for the response.

        ``flags`` are added to those of the header (REPLAY_OPERATION). ``packed`` is the last segment of the body
        compressed: it is sent in its place, and the signature is that of the whole message. Raises before anything is
        queued: ``TypeError`` for a body that is not bytes, ``ValueError`` for a payload that costs more than
        ``credits_wanted`` credits or a message that is too long for the server, ``ProtocolError`` if the server does
        not grant the credits that the payload needs, or if the session is to be signed or encrypted and has no key.
        [MS-SMB2 3.2.4.1.1, 3.2.4.1.8]
        """
        for segment in body:
            view = memoryview(segment)
            if not view.c_contiguous or view.nbytes != len(segment):
                raise TypeError("a message needs bytes in one piece")
        charge = max(1, (payload - 1) // CREDIT_SIZE + 1) if self.supports_multi_credit else 1
        if charge > self.credits_wanted:
            raise ValueError(
                f"{payload} bytes need {charge} credits, and the client requests at most {self.credits_wanted}"
            )
        if self.credits < charge or self.closed is not None:
            await self._wait_for_credits(charge)
        encrypt = session is not None and (session.encrypt or tree_id in session.encrypted_trees)
        signed = session is not None and not encrypt and (session.sign or (sign and session.signer is not None))
        started = self._enter(command, charge, session, tree_id, signed, encrypt, flags)
        try:
            self._transmit(started.header, body, session, signed, encrypt, on_encoded, packed)
        except BaseException:
            # Nothing was queued and no other task ran in between, so the MessageIds can be used again.
            del self._calls[started.header.message_id]
            self._next_message_id -= charge
            self.credits += charge
            raise
        return started

    def _charge(self, payload: int) -> int:
        return max(1, (payload - 1) // CREDIT_SIZE + 1) if self.supports_multi_credit else 1

    def _charge_of(self, parts: Sequence[Part]) -> int:
        """Return the credits of a chain. Most of its requests cost one each."""
        return len(parts) + sum(self._charge(part.payload) - 1 for part in parts if part.payload > CREDIT_SIZE)

    def can_chain(self, parts: Sequence[Part]) -> bool:
        """Return whether the credits held, with those that outstanding responses will return, pay for a chain."""
        charge = self._charge_of(parts)
        return charge <= self.credits or charge <= min(self._reach, self.credits_wanted)

    async def start_chain(
        self, parts: Sequence[Part], session: Protection, tree_id: int = 0, flags: int = 0
    ) -> list[Call]:
        """Send related requests in one message as soon as there are enough credits, and return them.

        ``flags`` are added to those of the first one. Each is signed for itself, with its padding; a chain is encrypted
        as a whole. Raises ``ConnectionLost``, and ``ProtocolError`` as ``start`` does. [MS-SMB2 3.2.4.1.4]
        """
        total = self._charge_of(parts)
        if self.credits < total or self.closed is not None:
            await self._wait_for_credits(total)
        encrypt = session.encrypt or tree_id in session.encrypted_trees
        signed = not encrypt and session.sign
        if (session.cipher if encrypt else session.signer) is None and (encrypt or signed):
            raise ProtocolError("requests must be protected, and there is no key", "MS-SMB2 3.2.4.1.4")
        calls: list[Call] = []
        segments: list[Buffer] = []
        last = len(parts) - 1
        for number, part in enumerate(parts):
            padding = following = 0
            if number < last:
                length = HEADER_SIZE + sum(map(len, part.body))
                padding = -length % 8
                following = length + padding
            charge = self._charge(part.payload) if part.payload > CREDIT_SIZE else 1
            call = self._enter(part.command, charge, session, tree_id, signed, encrypt, flags, following)
            flags = _RELATED
            calls.append(call)
            message = bytearray().join((HEADER.pack_fields(*call.header), *part.body, bytes(padding)))
            if signed and session.signer is not None:
                sign_request(message, session.signer)
            segments.append(message)
        writes = any(part.command == _WRITE for part in parts)
        self._send(self._packed_chain(segments) if writes else segments, session, encrypt)
        return calls

    def _packed_chain(self, segments: Sequence[Buffer]) -> Sequence[Buffer]:
        """Compress a chain that writes data, if that pays. The header that leads it stays as it is. [MS-SMB2
        3.1.4.4]"""
        agreed = self.negotiated.compression
        length = sum(map(len, segments)) - HEADER_SIZE
        if agreed is None or length < LONG or not self._benefit_of_chains.tries(length):
            return segments
        message = memoryview(b"".join(segments))
        packed = agreed.pack(message[HEADER_SIZE:])
        self._benefit_of_chains.judge(packed is not None, length)
        if packed is None:
            return segments
        self.compressed.sends(packed.original, packed.size)
        return packed.message([message[:HEADER_SIZE]])

    def _enter(
        self,
        command: int,
        charge: int,
        session: Protection | None,
        tree_id: int,
        signed: bool,
        encrypted: bool,
        flags: int,
        next_command: int = 0,
    ) -> Call:
        """Make a request's header, with ``charge`` credits and MessageIds, and expect its response."""
        self.credits -= charge
        header = new_record(
            Header,
            (
                PROTOCOL_ID,
                HEADER_SIZE,
                charge if self.dialect > _FIRST_DIALECT else 0,
                0,
                command,
                max(charge, self.credits_wanted - self.credits),
                flags | _SIGNED if signed else flags,
                next_command,
                self._next_message_id,
                0,
                tree_id,
                session.session_id if session is not None else 0,
                _NO_SIGNATURE,
            ),
        )
        self._next_message_id += charge
        started = Call(header, charge, session, self._loop.create_future(), signed, encrypted)
        if not self._calls:
            started.since = self._loop.time()
        if self._silence.sleeps:
            self._silence.begin()
        self._calls[header.message_id] = started
        return started

    @property
    def payload_limit(self) -> int:
        """Bytes that one request can carry with the credits held and those that outstanding responses will return."""
        if not self.supports_multi_credit:
            return CREDIT_SIZE
        return max(1, min(self._reach, self.credits_wanted)) * CREDIT_SIZE

    @property
    def _reach(self) -> int:
        return self.credits + sum(entry.charge for entry in self._calls.values() if not entry.async_id)

    async def _wait_for_credits(self, charge: int) -> None:
        """Wait until there are ``charge`` credits. Raise ``ProtocolError`` if the server does not grant them."""
        asked = False
        while self.credits < charge:
            self._raise_if_closed()
            # Credits come with responses. An asynchronous request got its credits with the interim response (3.3.4.2).
            if self.credits and all(entry.async_id for entry in self._calls.values()):
                if asked:
                    what = f"the server grants {self.credits} credits, and a request needs {charge}"
                    raise ProtocolError(what, "MS-SMB2 3.2.4.1.2")
                asked = True
                await self.echo()
                continue
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self._raise_if_closed()

    def _transmit(
        self,
        header: Header,
        body: Sequence[Buffer],
        session: Protection | None,
        signed: bool,
        encrypt: bool,
        on_encoded: Callable[[Sequence[Buffer]], None] | None = None,
        packed: Packed | None = None,
    ) -> None:
        segments: list[Buffer] = [HEADER.pack_fields(*header), *body]
        if session is not None and signed:
            if session.signer is None:
                raise ProtocolError("a request must be signed, and there is no key", "MS-SMB2 3.2.4.1.1")
            # A long payload is not copied.
            long = segments[-1:] if len(segments[-1]) >= KEEP_IN_PLACE else []
            message = bytearray().join(segments[:-1] if long else segments)
            sign_request(message, session.signer, *long)
            segments = [message, *long]
        if on_encoded is not None:
            on_encoded(segments)
        if packed is not None:
            lead = segments[:-1] if len(segments) > 1 else [memoryview(segments[0])[: -packed.original]]
            segments = packed.message(lead)
        if encrypt:
            self._send(segments, session, encrypt)
        else:
            self.transport.send(segments)
        if packed is not None:
            self.compressed.sends(packed.original, packed.size)

    def _send(self, segments: Sequence[Buffer], session: Protection | None, encrypt: bool) -> None:
        """Send a message of one or more requests, which are signed already."""
        if not encrypt or session is None:
            self.transport.send(segments)
            return
        if session.cipher is None:
            raise ProtocolError("a request must be encrypted, and there is no key", "MS-SMB2 3.2.4.1.8")
        sealed, release = seal(segments, session.cipher, self.transport.acquire)
        self.transport.send((sealed,), None, release)

    def cancel(self, started: Call) -> None:
        """Send SMB2 CANCEL; do nothing if the final response has arrived.

        The request still gets a response of its own. [MS-SMB2 3.2.4.24]
        """
        if self._calls.get(started.header.message_id) is not started or self.closed is not None:
            return
        session = started.session
        header = started.header._replace(command=Command.CANCEL, credit_charge=0, credits=0)
        if started.async_id:
            header = header._replace(
                flags=header.flags | _ASYNC, reserved=started.async_id & 0xFFFFFFFF, tree_id=started.async_id >> 32
            )
        encrypt = session is not None and session.encrypts(started.header.tree_id)
        self._transmit(header, [b"\4\0\0\0"], session, started.signed, encrypt)

    # Receiving

    def _receive(self, inbound: InboundMessage) -> None:
        try:
            self._take(inbound)
        except (ProtocolError, StatusError) as error:
            inbound.release()
            self.transport.abort(str(error))

    def _take(self, inbound: InboundMessage) -> None:
        view = inbound.view
        sealed_by = 0
        if view[:4] == TRANSFORM_PROTOCOL_ID:
            if len(view) < TRANSFORM_SIZE:
                raise DecodeError("shorter than a transform header")
            try:
                view, session = unseal(view, self.sessions.get, room_of(inbound))
            except EnvelopeError as error:
                raise ProtocolError(str(error), "MS-SMB2 3.2.5.1.1.1") from error
            sealed_by = session.session_id
        if view[:4] == COMPRESSION_PROTOCOL_ID:
            self._expand(inbound, view, sealed_by)
            return
        if len(view) < HEADER_SIZE:
            raise DecodeError("shorter than a header")
        header = new_record(Header, HEADER.fields_from(view))
        if header.protocol_id != PROTOCOL_ID:
            raise DecodeError("not an SMB2 message")
        if header.next_command or len(view) < KEEP_IN_PLACE:
            self._take_chain(header, memoryview(bytearray(view)), sealed_by)
            inbound.release()
        else:
            self._take_one(Reply(header, view, inbound, sealed_by))

    def _expand(self, inbound: InboundMessage, view: memoryview, sealed_by: int) -> None:
        """Decompress a message, on a worker thread if that takes long. What arrives behind it may overtake it.
        [MS-SMB2 3.2.5.1.1.2]
        """
        agreed, sizes = self.negotiated.compression, self.negotiated
        if agreed is None:
            raise ProtocolError("compressed message, and compression was not negotiated", "MS-SMB2 3.2.5.1.1")
        from smb3server.compression.transform import ON_THREAD_FROM, CompressionError, largest_plain

        largest = largest_plain((sizes.max_read_size, sizes.max_write_size, sizes.max_transact_size))
        limit = min(largest, self.transport.max_message_size)
        declared = COMPRESSION_TRANSFORM.fields_from(view)[1] if len(view) >= COMPRESSION_TRANSFORM.size else 0
        if not ON_THREAD_FROM <= declared <= limit:
            try:
                plain = agreed.unpack(view, limit)
            except CompressionError as error:
                raise ProtocolError(str(error), "MS-SMB2 3.2.5.1.1.2") from error
            self._take_expanded(plain, len(view), sealed_by)
            inbound.release()
            return
        if self._expanding >= len(self._calls):
            # Each takes memory, and each answers a request.
            raise ProtocolError("more compressed responses than requests", "MS-SMB2 3.2.5.1.2")
        self._expanding += 1
        future = self._loop.run_in_executor(None, agreed.unpack, view, limit)
        future.add_done_callback(partial(self._was_expanded, inbound, len(view), sealed_by))

    def _was_expanded(
        self, inbound: InboundMessage, size: int, sealed_by: int, future: asyncio.Future[memoryview]
    ) -> None:
        """Continue with a message that a worker thread has decompressed."""
        self._expanding -= 1
        inbound.release()
        if self.closed is not None:
            future.exception()
            return
        from smb3server.compression.transform import CompressionError

        try:
            self._take_expanded(future.result(), size, sealed_by)
        except (CompressionError, ProtocolError, StatusError) as error:
            self.transport.abort(str(error))

    def _take_expanded(self, plain: memoryview, size: int, sealed_by: int) -> None:
        self.compressed.receives(len(plain), size)
        self._take_chain(HEADER.make(HEADER.fields_from(plain)), plain, sealed_by)

    def _take_chain(self, header: Header, view: memoryview, sealed_by: int) -> None:
        while step := header.next_command:
            if step < HEADER_SIZE or step > len(view) - HEADER_SIZE:
                raise DecodeError("bad NextCommand")
            self._take_one(Reply(header, view[:step], sealed_by=sealed_by))
            view = view[step:]
            header = new_record(Header, HEADER.fields_from(view))
        self._take_one(Reply(header, view, sealed_by=sealed_by))

    def _take_one(self, reply: Reply) -> None:
        header = reply.header
        if header.message_id == NO_MESSAGE_ID:
            from smb3server.wire.oplock_break import parse_notification

            notification = parse_notification(reply.message)
            reply.release()
            self.on_break(notification)
            return
        self._grant(header.credits)
        started = self._calls.get(header.message_id)
        if started is None:
            raise ProtocolError(f"response to no request: {header.message_id}", "MS-SMB2 3.2.5.1.2")
        if header.status == _PENDING and header.flags & _ASYNC:
            started.async_id = header.async_id
            self._silence.interim(started)
            reply.release()
            return
        self._verify(reply, started)
        del self._calls[header.message_id]
        if started.future.done():
            reply.release()
        else:
            started.future.set_result(reply)

    def _verify(self, reply: Reply, started: Call) -> None:
        """Check that a response comes from the server of the request's session. [MS-SMB2 3.2.5.1.1, 3.2.5.1.3]

        The response to a signed or encrypted request must be signed or encrypted. If it says that the session does not
        exist, the server has no key, whatever the flag says.
        """
        session = started.session
        if reply.sealed_by:
            if session is None or session.session_id != reply.sealed_by:
                raise ProtocolError("response is encrypted for another session", "MS-SMB2 3.2.5.1.1")
            return
        if session is None or session.signer is None:
            return
        if reply.header.status == _SESSION_DELETED:
            return
        if not reply.header.flags & _SIGNED:
            if started.signed or started.encrypted:
                raise ProtocolError("response is neither signed nor encrypted", "MS-SMB2 3.2.5.1.3")
            return
        if not is_from_server(reply.message, session.signer, reply.header.message_id):
            raise ProtocolError("response's signature is wrong", "MS-SMB2 3.2.5.1.3")

    def _grant(self, credits: int) -> None:
        self.credits += credits
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _raise_if_closed(self) -> None:
        if self.closed is not None:
            raise ConnectionLost(self.closed)

    def _lost(self, error: BaseException | None) -> None:
        self.closed = error or ConnectionLost("closed")
        calls = list(self._calls.values())
        self._calls.clear()
        self._silence.stop()
        for started in calls:
            if not started.future.done():
                started.future.set_exception(ConnectionLost(self.closed))
                # Retrieve the exception: a caller that stopped waiting does not, and asyncio would log it.
                started.future.exception()
        self._grant(0)
        if self.exposed is not None:
            self.exposed.close()
        if not self._finished.done():
            self._finished.set_result(None)
        self.on_closed(error)


def error_data(message: memoryview) -> bytes:
    """Return the ErrorData of an error response; empty if it is not one. [MS-SMB2 2.2.2]

    The error context that dialect 3.1.1 puts around it is removed.
    """
    body = message[HEADER_SIZE:]
    if len(body) < 8 or body[0] != 9:
        return b""
    contexts, length = body[2], int.from_bytes(body[4:8], "little")
    data = bytes(body[8 : 8 + length])
    if contexts and len(data) >= 8:
        return data[8 : 8 + int.from_bytes(data[:4], "little")]
    return data
