"""Read and write by RDMA with transforms: ``transform_peer`` as a client, for this project's server.

Of the project it uses a transport to move bytes and to register memory, and nothing else. It holds one session, one
tree connect and one open. Tests change any field of a READ or WRITE before it is sent.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import spnego

from smbdirect.message_transport import InboundMessage, MessageTransport
from tests.lab import transform_messages as messages
from tests.lab.transform_messages import HEADER, Header
from tests.lab.transform_peer import (
    Chain,
    Channel,
    Cipher,
    Crypto,
    Descriptor,
    Keys,
    Kind,
    Signer,
    build_nonce,
    decode_capabilities,
    derive_keys,
    encode_capabilities,
    encode_chain,
    protect,
    unprotect,
)
from tests.lab.transform_rules import BOTH, Read, Way, judge_read, way_of

PREAUTH, ENCRYPTION, RDMA_TRANSFORM, SIGNING = 1, 2, 7, 8
"""Types of negotiate contexts [MS-SMB2 2.2.3.1]."""
NEGOTIATE, SESSION_SETUP, TREE_CONNECT, CREATE, CLOSE, READ, WRITE, CANCEL = 0, 1, 3, 5, 6, 8, 9, 12
MORE_PROCESSING_REQUIRED, PENDING = 0xC0000016, 0x103
ENCRYPT_DATA = 4
"""SMB2_SESSION_FLAG_ENCRYPT_DATA [MS-SMB2 2.2.6]."""
SHARE_ENCRYPTS = 0x8000
"""SMB2_SHAREFLAG_ENCRYPT_DATA [MS-SMB2 2.2.10]."""
DATA_OFFSET = HEADER + 16
CHANNEL_OFFSET = HEADER + 48
_DESCRIPTOR = struct.Struct("<QII")
PATIENCE = 20.0


@dataclass(frozen=True)
class Reply:
    """Hold one response, verified or decrypted."""

    header: Header
    message: bytes
    encrypted: bool

    @property
    def status(self) -> int:
        return self.header.status

    @property
    def body(self) -> bytes:
        return self.message[HEADER:]


@dataclass(frozen=True)
class Offer:
    """Hold what the client offers, and how it protects its requests where the server leaves that to it."""

    ids: tuple[int, ...] | None = BOTH
    """None: the client does not know transforms."""
    cipher: Cipher = Cipher.AES_128_GCM
    signer: Signer = Signer.AES_GMAC
    must_sign: bool = False
    encrypt: bool = False
    sign: bool = True


@dataclass
class Memory:
    """Hold memory that the server may use, and the descriptors that say so."""

    view: memoryview
    descriptors: tuple[Descriptor, ...]
    registered: Any


@dataclass
class TransformClient:
    """Speak SMB 3.1.1 over ``transport``."""

    transport: MessageTransport
    offer: Offer = field(default_factory=Offer)
    ids: tuple[int, ...] = ()
    """The ids that both ends have."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._message_id = 0
        self.session_id = self._tree_id = 0
        self._counter = 0
        self._preauth = bytes(64)
        self._keys: Keys | None = None
        self.file_id = bytes(16)
        self.encrypts = self.signs = False
        self.transport.start(self._received, self._lost)

    # Messages

    def _received(self, inbound: InboundMessage) -> None:
        message = bytes(inbound.view)
        inbound.release()
        encrypted = message[:4] == b"\xfdSMB"
        if encrypted:
            message = messages.unseal(message, self.keys, self.offer.cipher)
        while message:
            step = int.from_bytes(message[20:24], "little") or len(message)
            part, message = message[:step], message[step:]
            alone = part[:20] + bytes(4) + part[24:]
            header = messages.decode_header(alone)
            if header.signed and not encrypted and self._keys is not None:
                messages.verify_message(part, self._keys, self.offer.signer)
            answer = self._answers.get(header.message_id)
            if answer is not None and header.status != PENDING:
                answer.set_result(Reply(header, alone, encrypted))

    def _lost(self, _error: BaseException | None) -> None:
        self.closed.set()
        for answer in self._answers.values():
            answer.cancel()

    @property
    def keys(self) -> Keys:
        assert self._keys is not None
        return self._keys

    def next_number(self) -> int:
        """Return a number that no nonce of this session had."""
        self._counter += 1
        return self._counter

    def build(self, command: int, body: bytes, charge: int = 1, flags: int = 0) -> bytes:
        """Build a request with the next MessageId, neither signed nor encrypted."""
        message_id = self._message_id
        self._message_id += charge
        tree_id = 0 if command in (NEGOTIATE, SESSION_SETUP, TREE_CONNECT) else self._tree_id
        header = Header(command, message_id, 0, charge, 512, flags, tree_id, self.session_id)
        return header.encode() + body

    def post(self, message: bytes, encrypt: bool | None = None, sign: bool | None = None) -> int:
        """Protect a request as its session does, or as told, and send it. Return its MessageId."""
        header = self._expect(message)
        self.send(message, encrypt, sign)
        return header.message_id

    def send_compound(self, *requests: bytes) -> list[int]:
        """Encrypt requests together and send them as one message [MS-SMB2 3.2.4.1.4]."""
        numbers = [self._expect(request).message_id for request in requests]
        padded = [request + bytes(-len(request) % 8) for request in requests[:-1]]
        chained = [part[:20] + len(part).to_bytes(4, "little") + part[24:] for part in padded]
        self.send(b"".join([*chained, requests[-1]]), encrypt=True)
        return numbers

    def _expect(self, request: bytes) -> Header:
        header = messages.decode_header(request)
        self._answers[header.message_id] = asyncio.get_running_loop().create_future()
        return header

    def send(self, message: bytes, encrypt: bool | None = None, sign: bool | None = None) -> None:
        """Protect a message and send it. Nobody waits for an answer."""
        if self.encrypts if encrypt is None else encrypt:
            message = messages.seal(message, self.keys, self.offer.cipher, self.session_id, self.next_number())
        elif self.signs if sign is None else sign:
            message = messages.sign_message(message, self.keys, self.offer.signer)
        self.transport.send([message])

    async def answer(self, message_id: int) -> Reply:
        """Return the final response to a request. Raises ``CancelledError`` if the server ends the connection."""
        async with asyncio.timeout(PATIENCE):
            return await self._answers[message_id]

    async def call(self, command: int, body: bytes, charge: int = 1, **protection: bool) -> Reply:
        return await self.answer(self.post(self.build(command, body, charge), **protection))

    # Set-up

    async def log_on(self, share: str = "share", name: str = "f", user: str = "u", password: str = "pw") -> None:
        """Do all that comes before the first READ."""
        await self.negotiate()
        await self._session_setup(user, password)
        path = f"\\\\server\\{share}".encode("utf-16-le")
        tree = await self.call(TREE_CONNECT, struct.pack("<HHHH", 9, 0, HEADER + 8, len(path)) + path)
        assert not tree.status, hex(tree.status)
        self._tree_id = tree.header.tree_id
        if int.from_bytes(tree.body[4:8], "little") & SHARE_ENCRYPTS:
            self.encrypts = True
        await self.open(name)

    async def negotiate(self) -> None:
        """Negotiate 3.1.1 with the contexts of the offer [MS-SMB2 3.2.4.2.2.2]."""
        offer = self.offer
        contexts = [
            (PREAUTH, struct.pack("<HHH", 1, 32, 1) + os.urandom(32)),
            (ENCRYPTION, struct.pack("<HH", 1, offer.cipher)),
            (SIGNING, struct.pack("<HH", 1, offer.signer)),
        ]
        if offer.ids is not None:
            contexts.append((RDMA_TRANSFORM, encode_capabilities(offer.ids)))
        reply = self.negotiated = await self.negotiate_with(contexts)
        assert not reply.status, hex(reply.status)
        (count,), (at,) = struct.unpack_from("<H", reply.body, 6), struct.unpack_from("<I", reply.body, 60)
        answered = messages.decode_contexts(reply.message, at, count)
        if RDMA_TRANSFORM in answered:
            self.ids = tuple(value for value in decode_capabilities(answered[RDMA_TRANSFORM]) if value)
        self.max_read, self.max_write = struct.unpack_from("<II", reply.body, 32)

    async def negotiate_with(self, contexts: Sequence[tuple[int, bytes]]) -> Reply:
        """Send a NEGOTIATE with any contexts, and return its response."""
        mode = 3 if self.offer.must_sign else 1
        at = HEADER + 40  # 36 bytes and one dialect, padded to 8
        fixed = struct.pack("<HHHHI16sIHH", 36, 1, mode, 0, 0x44, os.urandom(16), at, len(contexts), 0)
        body = fixed + struct.pack("<H", 0x311) + bytes(2) + messages.encode_contexts(contexts)
        message = self.build(NEGOTIATE, body, charge=1)
        reply = await self.answer(self.post(message))
        for part in (message, reply.message):
            self._preauth = messages.extend(self._preauth, part)
        return reply

    async def _session_setup(self, user: str, password: str) -> None:
        context = spnego.client(user, password, protocol="ntlm", hostname="server", service="cifs")
        mode, token = 3 if self.offer.must_sign else 1, context.step()
        while True:
            fixed = struct.pack("<HBBIIHHQ", 25, 0, mode, 0, 0, HEADER + 24, len(token or b""), 0)
            message = self.build(SESSION_SETUP, fixed + (token or b""))
            self._preauth = messages.extend(self._preauth, message)
            reply = await self.answer(self.post(message))
            if reply.status != MORE_PROCESSING_REQUIRED:
                break
            self._preauth = messages.extend(self._preauth, reply.message)
            self.session_id = reply.header.session_id
            offset, length = struct.unpack_from("<HH", reply.body, 4)
            token = context.step(reply.message[offset : offset + length])
        assert not reply.status, hex(reply.status)
        self._keys = derive_keys(context.session_key[:16], context.session_key, self._preauth, self.offer.cipher, False)
        self.signs = True
        self.encrypts = self.offer.encrypt or bool(int.from_bytes(reply.body[2:4], "little") & ENCRYPT_DATA)

    async def open(self, name: str) -> None:
        """Open a file, or create it."""
        path = name.encode("utf-16-le")
        fields = (57, 0, 0, 2, 0, 0, 0x0012019F, 0, 7, 3, 0, HEADER + 56, len(path), 0, 0)
        reply = await self.call(CREATE, struct.pack("<HBBIQQIIIIIHHII", *fields) + path)
        assert not reply.status, hex(reply.status)
        self.file_id = reply.body[64:80]

    # READ and WRITE

    @property
    def way(self) -> Way:
        """How data travels, by what was agreed."""
        return way_of(self.encrypts, self.signs and self.offer.sign, self.ids)

    @property
    def kind(self) -> Kind:
        return Kind.ENCRYPTION if self.encrypts else Kind.SIGNING

    @property
    def algorithm(self) -> Cipher | Signer:
        return self.offer.cipher if self.encrypts else self.offer.signer

    def memory(self, data: bytes, cuts: Sequence[int] = (), writable: bool = False) -> Memory:
        """Register ``data``, described by as many descriptors as ``cuts`` make."""
        assert self.transport.rdma is not None
        view = memoryview(bytearray(data))
        registered = self.transport.rdma.register(view, readable=not writable, writable=writable)
        found: list[Descriptor] = []
        for whole in registered.descriptors:
            begin = 0
            for end in (*(cut for cut in cuts if 0 < cut < whole.length), whole.length):
                found.append(Descriptor(whole.offset + begin, whole.token, end - begin))
                begin = end
        return Memory(view, tuple(found), registered)

    def protected(self, data: bytes) -> tuple[bytes, Crypto]:
        """Protect a payload as the session demands."""
        nonce = build_nonce(self.kind, self.algorithm, self.next_number(), server=False)
        return protect(data, self.keys, self.kind, self.algorithm, nonce)

    def write_body(self, info: bytes, remaining: int, channel: int = Channel.RDMA_TRANSFORM, **fields: int) -> bytes:
        """Build a WRITE by RDMA, with any of its fields changed [MS-SMB2 2.2.21]."""
        values = {"data_offset": 0, "length": 0, "offset": 0, "info_offset": CHANNEL_OFFSET if info else 0, **fields}
        fixed = struct.pack("<HHIQ", 49, values["data_offset"], values["length"], values["offset"])
        rest = struct.pack("<IIHHI", channel, remaining, values["info_offset"], len(info), values.get("flags", 0))
        return fixed + self.file_id + rest + info

    def write_request(self, data: bytes, at: int = 0, cuts: Sequence[int] = ()) -> tuple[bytes, Memory]:
        """Build a WRITE as the session demands. The server may use the memory at once."""
        if self.way is Way.CLEAR:
            memory = self.memory(data, cuts)
            info, channel = encode_descriptors(memory.descriptors), Channel.RDMA_V1_INVALIDATE
        else:
            placed, crypto = self.protected(data)
            memory = self.memory(placed, cuts)
            info = encode_chain(Chain(self.channel, (crypto,), memory.descriptors))
            channel = Channel.RDMA_TRANSFORM
        body = self.write_body(info, len(data), channel, offset=at)
        return self.build(WRITE, body, charge_for(len(data))), memory

    async def write(self, data: bytes, at: int = 0, cuts: Sequence[int] = ()) -> Reply:
        """Write by RDMA as the session demands [MS-SMB2 3.2.4.7]."""
        message, memory = self.write_request(data, at, cuts)
        try:
            reply = await self.answer(self.post(message))
            self.check_invalidated(memory)
            return reply
        finally:
            memory.registered.deregister()

    def check_invalidated(self, memory: Memory) -> None:
        """Only the first token is the server's to invalidate [MS-SMBD 3.1.4.2]."""
        if len(memory.registered.descriptors) == 1:
            assert memory.registered.invalidated == (self.channel == Channel.RDMA_V1_INVALIDATE)

    @property
    def channel(self) -> Channel:
        """The channel that names descriptors: with remote invalidation if the fabric has it."""
        assert self.transport.rdma is not None
        possible = self.transport.rdma.regions_invalidatable
        return Channel.RDMA_V1_INVALIDATE if possible else Channel.RDMA_V1

    def read_body(self, length: int, info: bytes, channel: int | None = None, **fields: int) -> bytes:
        """Build a READ by RDMA [MS-SMB2 2.2.19]."""
        offset = fields.get("offset", 0)
        fixed = struct.pack("<HBBIQ", 49, DATA_OFFSET, 0, length, offset) + self.file_id
        kind = self.channel if channel is None else channel
        return fixed + struct.pack("<IIIHH", fields.get("minimum", 0), kind, length, CHANNEL_OFFSET, len(info)) + info

    def read_request(self, length: int, at: int = 0, cuts: Sequence[int] = ()) -> tuple[bytes, Memory]:
        """Build a READ into memory of its own."""
        memory = self.memory(b"." * length, cuts, writable=True)
        body = self.read_body(length, encode_descriptors(memory.descriptors), offset=at)
        return self.build(READ, body, charge_for(length)), memory

    async def read(self, length: int, at: int = 0, cuts: Sequence[int] = ()) -> bytes:
        """Read by RDMA, check the response by every rule, and return the data [MS-SMB2 3.2.5.11]."""
        message, memory = self.read_request(length, at, cuts)
        try:
            reply = await self.answer(self.post(message))
            assert not reply.status, hex(reply.status)
            self.check_invalidated(memory)
            return self.take(reply, memory)
        finally:
            memory.registered.deregister()

    def take(self, reply: Reply, memory: Memory) -> bytes:
        """Return what a response to a READ says, and leave nothing in it unchecked."""
        _, offset, _, size, remaining, flags = struct.unpack_from("<HBBIII", reply.body)
        data = bytes(memory.view[:remaining])
        assert bytes(memory.view[remaining:]) == b"." * (len(memory.view) - remaining)
        assert offset == DATA_OFFSET
        if self.way is Way.CLEAR:
            assert (size, flags) == (0, 0)
            return data
        assert flags == 1
        info = reply.message[offset : offset + size]
        assert len(info) == size == len(reply.message) - offset
        crypto = judge_read(Read(info, reply.encrypted, self.ids, self.offer.cipher, remaining=remaining))
        return unprotect(data, self.keys, crypto, self.algorithm)


def charge_for(length: int) -> int:
    """Return the CreditCharge of a transfer [MS-SMB2 3.1.5.2]."""
    return max(1, -(-length // 65536))


def encode_descriptors(descriptors: Sequence[Descriptor]) -> bytes:
    """Build a list of descriptors [MS-SMBD 2.2.3.1]."""
    return b"".join(_DESCRIPTOR.pack(one.offset, one.token, one.length) for one in descriptors)
