"""One connection of a client: negotiation (MS-SMB2 3.2.4.2.2), message identifiers, signatures, requests, replies."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass, field

from smb3server.buffers import BufferPool
from smb3server.request import Buffer
from smb3server.security import preauth
from smb3server.security.algorithms import PREAUTH_SHA_512, Cipher, SigningAlgorithm
from smb3server.security.signing import Signer
from smb3server.status import NtStatus
from smb3server.transports.tcp import TcpTransport
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, SIGNATURE_OFFSET, Command, Header, HeaderFlags
from smb3server.wire.negotiate import (
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    Capability,
    ContextType,
    Dialect,
    NegotiateRequest,
    NegotiateResponse,
    SecurityMode,
    pack_contexts,
)
from smbdirect.errors import ConnectionLost, DecodeError
from smbdirect.message_transport import InboundMessage, MessageTransport

ALL_DIALECTS = (0x0202, 0x0210, 0x0300, 0x0302, 0x0311)
MAX_MESSAGE = (8 << 20) + (1 << 16)
REPLY_TIMEOUT = 15.0
"""Seconds a server may take to answer before the connection counts as dead."""
CREDITS = 64
"""Asked for with every request."""


class RequestFailed(Exception):
    """The server answered with an error status."""

    def __init__(self, command: int, status: int) -> None:
        self.command = command
        self.status = status
        super().__init__(f"{_name(Command, command)}: {_name(NtStatus, status)}")


def _name(kind: type[Command] | type[NtStatus], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return f"0x{value:08x}"


@dataclass(slots=True)
class Offer:
    """What the client says of itself in NEGOTIATE."""

    dialects: tuple[int, ...] = ALL_DIALECTS
    capabilities: int = int(Capability.LEASING | Capability.LARGE_MTU | Capability.MULTI_CHANNEL)
    security_mode: int = int(SecurityMode.SIGNING_ENABLED)
    client_guid: bytes = field(default_factory=lambda: os.urandom(16))
    """The same on all channels of a session."""
    ciphers: tuple[int, ...] = ()
    """3.1.1: empty means that the client cannot encrypt."""


@dataclass(slots=True)
class Reply:
    header: Header
    message: memoryview
    """The whole reply, header included; the receiver's own copy."""


class SmbConnection:
    """Takes over ``transport``, which must not have been started."""

    def __init__(self, transport: MessageTransport, offer: Offer) -> None:
        self.transport = transport
        self.offer = offer
        self.dialect = 0
        self.server_capabilities = 0
        self.server_guid = bytes(16)
        self.server_security_mode = 0
        self.max_read_size = self.max_write_size = self.max_transact_size = 65536
        self.cipher_id = 0
        self.signing_algorithm_id = int(SigningAlgorithm.HMAC_SHA256)
        self.preauth_hash = b""
        self.error: BaseException | None = None
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._next_message_id = 0
        self._granted = 1
        self._closed = asyncio.get_running_loop().create_future()
        transport.max_message_size = MAX_MESSAGE
        transport.start(self._receive, self._ended)

    # -- messages ------------------------------------------------------------------------------------------------

    def _receive(self, inbound: InboundMessage) -> None:
        message = memoryview(bytearray(inbound.view))
        inbound.release()
        start = 0
        while start + HEADER_SIZE <= len(message) and message[start : start + 4] == PROTOCOL_ID:
            header = HEADER.unpack(message, start)
            end = start + header.next_command if header.next_command else len(message)
            if end > len(message) or (header.next_command and header.next_command < HEADER_SIZE):
                break
            self._granted += header.credits
            interim = header.status == NtStatus.PENDING and header.flags & HeaderFlags.ASYNC_COMMAND
            waiter = None if interim else self._waiting.pop(header.message_id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(Reply(header, message[start:end]))
            if not header.next_command:
                return
            start = end
        self.transport.abort("malformed reply")

    def _ended(self, error: BaseException | None) -> None:
        self.error = error or ConnectionLost("the server closed the connection")
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(self.error))
        self._waiting.clear()
        if not self._closed.done():
            self._closed.set_result(None)

    async def request(
        self,
        command: int,
        body: Buffer,
        session_id: int = 0,
        tree_id: int = 0,
        signer: Signer | None = None,
        payload: int = 0,
        on_message: list[bytes] | None = None,
    ) -> Reply:
        """Send one request and await its final reply, whatever its status. ``payload``: bytes that the credit charge is
        computed from (3.2.4.1.5). ``on_message`` collects the request as sent. Raises ``ConnectionLost``,
        ``TimeoutError``."""
        if self.error is not None:
            raise ConnectionLost(self.error)
        charge = 1 + (payload - 1) // 65536 if payload and self.dialect >= Dialect.SMB_2_1 else 1
        if self._granted < charge:
            raise ConnectionLost(f"the server left no credits for command {command}")
        self._granted -= charge
        message_id = self._next_message_id
        self._next_message_id += charge
        header = Header(
            credit_charge=charge if self.dialect >= Dialect.SMB_2_1 else 0,
            command=command,
            credits=CREDITS,
            flags=int(HeaderFlags.SIGNED) if signer is not None else 0,
            message_id=message_id,
            tree_id=tree_id,
            session_id=session_id,
        )
        message = memoryview(bytearray(HEADER.pack(header) + body))
        if signer is not None:
            message[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16] = signer.expect(message)
        if on_message is not None:
            on_message.append(bytes(message))
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = waiter
        self.transport.send((message,))
        try:
            async with asyncio.timeout(REPLY_TIMEOUT):
                return await waiter
        finally:
            self._waiting.pop(message_id, None)

    async def call(
        self,
        command: int,
        body: Buffer,
        session_id: int = 0,
        tree_id: int = 0,
        signer: Signer | None = None,
        payload: int = 0,
    ) -> Reply:
        """``request``, with statuses other than success raised as ``RequestFailed``."""
        reply = await self.request(command, body, session_id, tree_id, signer, payload)
        if reply.header.status:
            raise RequestFailed(command, reply.header.status)
        return reply

    # -- negotiation ---------------------------------------------------------------------------------------------

    async def negotiate(self) -> NegotiateResponse:
        """3.2.4.2.2.2, 3.2.5.2. Raises ``RequestFailed``, ``DecodeError``, ``ConnectionLost`` or ``TimeoutError``."""
        offer = self.offer
        dialects = struct.pack(f"<{len(offer.dialects)}H", *offer.dialects)
        contexts = b""
        record = NegotiateRequest(
            dialect_count=len(offer.dialects),
            security_mode=offer.security_mode,
            capabilities=offer.capabilities if max(offer.dialects) >= Dialect.SMB_3_0 else 0,
            client_guid=offer.client_guid if max(offer.dialects) >= Dialect.SMB_2_1 else bytes(16),
        )
        body = NEGOTIATE_REQUEST.pack(record) + dialects
        if Dialect.SMB_3_1_1 in offer.dialects:
            offset = HEADER_SIZE + len(body)
            padding = -offset & 7
            contexts = self._contexts()
            count = 3 if offer.ciphers else 2
            record = record._replace(context_offset=offset + padding, context_count=count)
            body = NEGOTIATE_REQUEST.pack(record) + dialects + bytes(padding) + contexts
        sent: list[bytes] = []
        reply = await self.request(Command.NEGOTIATE, body, on_message=sent)
        if reply.header.status:
            raise RequestFailed(Command.NEGOTIATE, reply.header.status)
        response = NEGOTIATE_RESPONSE.unpack(reply.message, HEADER_SIZE)
        if response.dialect not in offer.dialects:
            raise DecodeError(f"the server chose dialect 0x{response.dialect:04x}, which was not offered")
        self.dialect = response.dialect
        self.server_capabilities = response.capabilities
        self.server_guid = response.server_guid
        self.server_security_mode = response.security_mode
        self.max_read_size = response.max_read_size
        self.max_write_size = response.max_write_size
        self.max_transact_size = response.max_transact_size
        if self.dialect >= Dialect.SMB_3_0:
            self.signing_algorithm_id = int(SigningAlgorithm.AES_CMAC)
        if self.dialect == Dialect.SMB_3_1_1:
            start = preauth.extend(preauth.INITIAL_HASH, sent)
            self.preauth_hash = preauth.extend(start, (reply.message,))
            self._take_contexts(reply.message, response)
        elif response.capabilities & Capability.ENCRYPTION:
            self.cipher_id = int(Cipher.AES_128_CCM)
        return response

    def _contexts(self) -> bytes:
        hashes = struct.pack("<HHH", 1, 32, PREAUTH_SHA_512) + os.urandom(32)
        algorithms = struct.pack("<HHH", 2, SigningAlgorithm.AES_GMAC, SigningAlgorithm.AES_CMAC)
        contexts = [(int(ContextType.PREAUTH_INTEGRITY), hashes), (int(ContextType.SIGNING), algorithms)]
        ciphers = self.offer.ciphers
        if ciphers:
            contexts.append((int(ContextType.ENCRYPTION), struct.pack(f"<H{len(ciphers)}H", len(ciphers), *ciphers)))
        return pack_contexts(contexts)

    def _take_contexts(self, message: memoryview, response: NegotiateResponse) -> None:
        offset = response.context_offset
        for _ in range(response.context_count):
            offset += -offset & 7
            if offset + 8 > len(message):
                raise DecodeError("negotiate contexts exceed the reply")
            kind, length, _reserved = struct.unpack_from("<HHI", message, offset)
            data = message[offset + 8 : offset + 8 + length]
            offset += 8 + length
            if kind in (ContextType.ENCRYPTION, ContextType.SIGNING) and len(data) >= 4:
                (_count, number) = struct.unpack_from("<HH", data)
                if kind == ContextType.ENCRYPTION:
                    self.cipher_id = number
                else:
                    self.signing_algorithm_id = number

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the transport and wait until it has ended."""
        self.transport.close("client is done")
        await asyncio.wait([self._closed], timeout=REPLY_TIMEOUT)


async def connect_tcp(host: str, port: int, offer: Offer, timeout: float = 5.0) -> SmbConnection:
    """Connect, not negotiated yet. ``timeout`` in seconds. Raises ``OSError`` (``TimeoutError`` among them)."""
    loop = asyncio.get_running_loop()
    last: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            async with asyncio.timeout(timeout):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            last = error
            continue
        except BaseException:
            sock.close()
            raise
        return SmbConnection(TcpTransport(sock, BufferPool(), MAX_MESSAGE), offer)
    raise last or OSError(f"{host} has no address")
