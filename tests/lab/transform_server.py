"""Serve one file over SMB 3.1.1 with RDMA transforms: ``transform_peer`` as a server, for this project's client.

Of the project it uses a transport to move bytes, and nothing else. It answers each request as it comes, grants credits
freely, and trusts its client in everything but the rules of the transforms. ``spoil`` changes the answer to each READ:
that makes servers that break a rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import spnego

from smbdirect.message_transport import InboundMessage, MessageTransport, RemoteBuffer
from tests.lab import transform_messages as messages
from tests.lab.transform_messages import HEADER, SERVER_TO_REDIR, Header, NotAuthentic
from tests.lab.transform_peer import (
    Chain,
    Channel,
    Cipher,
    Crypto,
    Descriptor,
    Keys,
    Kind,
    Refused,
    Signer,
    Status,
    answer_capabilities,
    build_nonce,
    check_size,
    decode_capabilities,
    decode_descriptors,
    derive_keys,
    encode_capabilities,
    encode_chain,
    protect,
    unprotect,
)
from tests.lab.transform_rules import BOTH, Way, Write, judge_write, way_of

PREAUTH, ENCRYPTION, RDMA_TRANSFORM, SIGNING = 1, 2, 7, 8
"""Types of negotiate contexts [MS-SMB2 2.2.3.1]."""
NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_CONNECT, TREE_DISCONNECT, CREATE, CLOSE = range(7)
READ, WRITE, ECHO = 8, 9, 13
MORE_PROCESSING_REQUIRED, NOT_SUPPORTED, END_OF_FILE = 0xC0000016, 0xC00000BB, 0xC0000011
SESSION, TREE, FILE = 0x1122334455667788, 5, b"persistentvolatile"[:16]
MAX_SIZE = 1 << 23
GUID = bytes(range(16))
NTLM_ALONE = bytes.fromhex("601c06062b0601050502a0123010a00e300c060a2b06010401823702020a")
"""A NegTokenInit that names NTLM only: without it a client looks for Kerberos, in the network [RFC 4178 4.2.1]."""
DATA_OFFSET = HEADER + 16


@dataclass(frozen=True)
class Offer:
    """Hold what the server speaks, and what it asks of its clients."""

    ids: tuple[int, ...] = BOTH
    cipher: Cipher = Cipher.AES_128_GCM
    signer: Signer = Signer.AES_GMAC
    must_sign: bool = False
    session_encrypts: bool = False
    share_encrypts: bool = False


@dataclass(frozen=True)
class Answer:
    """Hold everything of a READ's answer that a rule is about [MS-SMB2 2.2.20, 3.3.5.12]."""

    way: Way
    placed: bytes
    """What is written by RDMA; empty if the data is in the message."""
    remaining: int
    """DataRemaining."""
    buffer: bytes
    """Buffer: the chain, or the data."""
    flags: int
    """RESPONSE_RDMA_TRANSFORM is 1."""
    encrypted: bool
    """How the response travels."""
    signed: bool
    data_offset: int = DATA_OFFSET
    data_length: int = -1
    """-1: the length of ``buffer``."""


@dataclass
class Request:
    """Hold one request and how it came."""

    header: Header
    message: bytes
    encrypted: bool

    @property
    def body(self) -> bytes:
        return self.message[HEADER:]


@dataclass
class TransformServer:
    """Serve ``content`` under any name. ``accept`` takes each connection."""

    offer: Offer = field(default_factory=Offer)
    content: bytearray = field(default_factory=bytearray)
    spoil: Callable[[Answer], Answer] = lambda answer: answer
    spoil_ids: Callable[[list[int]], list[bytes]] = lambda ids: [encode_capabilities(ids)]
    """Returns the data of each SMB2_RDMA_TRANSFORM_CAPABILITIES of the NEGOTIATE response."""
    reads: list[Answer] = field(default_factory=list)
    """The answers before ``spoil``."""
    writes: list[Way] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    """What came with the WRITEs."""
    refused: list[Refused | NotAuthentic] = field(default_factory=list)
    """What the client did wrong."""

    def accept(self, transport: MessageTransport) -> None:
        """Serve one connection."""
        _Connection(self, transport)


class _Connection:
    def __init__(self, server: TransformServer, transport: MessageTransport) -> None:
        self._server = server
        self._offer = server.offer
        self._transport = transport
        self._ids: tuple[int, ...] = ()
        self._preauth = bytes(64)
        self._keys: Keys | None = None
        self._counter = 0
        self._spnego = spnego.server(
            protocol="negotiate", options=spnego.NegotiateOptions.use_negotiate | spnego.NegotiateOptions.use_ntlm
        )
        self._commands: dict[int, Callable[[Request], None]] = {
            NEGOTIATE: self._negotiate,
            SESSION_SETUP: self._session_setup,
            TREE_CONNECT: self._tree_connect,
            CREATE: self._create,
            READ: self._read,
            WRITE: self._write,
            CLOSE: partial(self._plain, body=struct.pack("<HHIQQQQQQI", 60, *[0] * 9)),
            **dict.fromkeys((LOGOFF, TREE_DISCONNECT, ECHO), partial(self._plain, body=struct.pack("<HH", 4, 0))),
        }
        transport.trust(MAX_SIZE + 4096)
        transport.start(self._received, lambda _: None)

    def _next(self) -> int:
        """Return a number that no nonce of this session had."""
        self._counter += 1
        return self._counter

    # Messages

    def _received(self, inbound: InboundMessage) -> None:
        message = bytes(inbound.view)
        inbound.release()
        try:
            encrypted = message[:4] == b"\xfdSMB"
            if encrypted:
                message = messages.unseal(message, self._known(), self._offer.cipher)
            header = messages.decode_header(message)
            if header.signed and not encrypted:
                messages.verify_message(message, self._known(), self._offer.signer)
            request = Request(header, message, encrypted)
            self._check_protection(request)
        except NotAuthentic as error:
            self._server.refused.append(error)
            self._transport.abort(str(error))
            return
        try:
            self._commands.get(header.command, partial(self._error, status=NOT_SUPPORTED))(request)
        except Refused as refused:
            self._server.refused.append(refused)
            self._error(request, refused.status)

    def _check_protection(self, request: Request) -> None:
        """Refuse a request that should be encrypted or signed and is not [MS-SMB2 3.3.5.2.9, 3.3.5.2.11]."""
        offer = self._offer
        if self._keys is None or request.header.command == SESSION_SETUP:
            return
        on_tree = request.header.tree_id == TREE and offer.share_encrypts
        if (offer.session_encrypts or on_tree) and not request.encrypted:
            raise NotAuthentic("request is not encrypted")
        if offer.must_sign and not request.encrypted and not request.header.signed:
            raise NotAuthentic("request is not signed")

    def _known(self) -> Keys:
        if self._keys is None:
            raise NotAuthentic("there are no keys yet")
        return self._keys

    def _reply(
        self,
        request: Request,
        body: bytes,
        status: int = 0,
        invalidate: int | None = None,
        encrypted: bool | None = None,
        signed: bool | None = None,
        tree_id: int | None = None,
    ) -> bytes:
        """Send a response as its request came, unless told otherwise, and return its message."""
        asked = request.header
        tree = asked.tree_id if tree_id is None else tree_id
        session = 0 if asked.command == NEGOTIATE else SESSION
        header = Header(
            asked.command, asked.message_id, status, asked.charge, 512, SERVER_TO_REDIR, tree, session_id=session
        )
        message = header.encode() + body
        encrypted = request.encrypted if encrypted is None else encrypted
        if not encrypted and (asked.signed if signed is None else signed):
            message = messages.sign_message(message, self._known(), self._offer.signer)
        sent = message
        if encrypted:
            sent = messages.seal(message, self._known(), self._offer.cipher, SESSION, self._next())
        self._transport.send([sent], invalidate)
        return message

    def _error(self, request: Request, status: int) -> None:
        self._reply(request, struct.pack("<HBBIB", 9, 0, 0, 0, 0), status)

    def _plain(self, request: Request, body: bytes) -> None:
        self._reply(request, body)

    # Set-up

    def _negotiate(self, request: Request) -> None:
        offset, count = struct.unpack_from("<IH", request.body, 28)
        offered = messages.decode_contexts(request.message, offset, count)
        contexts = [
            (PREAUTH, struct.pack("<HHH", 1, 32, 1) + bytes(32)),
            (ENCRYPTION, struct.pack("<HH", 1, self._offer.cipher)),
            (SIGNING, struct.pack("<HH", 1, self._offer.signer)),
        ]
        if RDMA_TRANSFORM in offered:
            ids = answer_capabilities(decode_capabilities(offered[RDMA_TRANSFORM]), self._offer.ids)
            self._ids = tuple(one for one in ids if one)
            contexts += [(RDMA_TRANSFORM, data) for data in self._server.spoil_ids(ids)]
        mode = 3 if self._offer.must_sign else 1
        fixed = struct.pack("<HHHH16sIIIIQQ", 65, mode, 0x311, len(contexts), GUID, 0x44, *[MAX_SIZE] * 3, 0, 0)
        end = HEADER + 64 + len(NTLM_ALONE)
        where = struct.pack("<HHI", HEADER + 64, len(NTLM_ALONE), end + -end % 8)
        body = fixed + where + NTLM_ALONE + bytes(-end % 8) + messages.encode_contexts(contexts)
        self._preauth = messages.extend(self._preauth, request.message)
        self._preauth = messages.extend(self._preauth, self._reply(request, body))

    def _session_setup(self, request: Request) -> None:
        offset, length = struct.unpack_from("<HH", request.body, 12)
        self._preauth = messages.extend(self._preauth, request.message)
        token = self._spnego.step(request.message[offset : offset + length]) or b""
        done = self._spnego.complete
        flags = 4 if done and self._offer.session_encrypts else 0
        body = struct.pack("<HHHH", 9, flags, HEADER + 8, len(token)) + token
        if not done:
            message = self._reply(request, body, MORE_PROCESSING_REQUIRED)
            self._preauth = messages.extend(self._preauth, message)
            return
        key = self._spnego.session_key
        self._keys = derive_keys(key[:16], key, self._preauth, self._offer.cipher, server=True)
        self._reply(request, body, signed=True)

    def _tree_connect(self, request: Request) -> None:
        flags = 0x8000 if self._offer.share_encrypts else 0
        self._reply(request, struct.pack("<HBBIII", 16, 1, 0, flags, 0, 0x1F01FF), tree_id=TREE)

    def _create(self, request: Request) -> None:
        size = len(self._server.content)
        fixed = struct.pack("<HBBIQQQQQQII", 89, 0, 0, 1, 0, 0, 0, 0, size, size, 0x80, 0)
        self._reply(request, fixed + FILE + struct.pack("<II", 0, 0))

    # Data

    def _descriptors(self, data: bytes) -> tuple[Descriptor, ...]:
        found = decode_descriptors(data)
        if self._transport.rdma is None or not found:
            raise Refused(Status.INVALID_PARAMETER, "descriptors, or a connection that has no RDMA")
        return found

    def _way(self, request: Request) -> Way:
        return way_of(request.encrypted, request.header.signed, self._ids)

    def _protect(self, data: bytes, way: Way) -> tuple[bytes, Crypto]:
        encrypts = way is Way.ENCRYPTED
        kind = Kind.ENCRYPTION if encrypts else Kind.SIGNING
        algorithm = self._offer.cipher if encrypts else self._offer.signer
        nonce = build_nonce(kind, algorithm, self._next(), server=True)
        return protect(data, self._known(), kind, algorithm, nonce)

    def _read(self, request: Request) -> None:
        """Answer as 3.3.5.12 says, and then as ``spoil`` says."""
        length, offset = struct.unpack_from("<IQ", request.body, 4)
        channel, _, at, size = struct.unpack_from("<IIHH", request.body, 36)
        data = bytes(self._server.content[offset : offset + length])
        if not data:
            self._error(request, END_OF_FILE)
            return
        signed, descriptors = request.header.signed and not request.encrypted, ()
        answer = Answer(Way.MESSAGE, b"", 0, data, 0, request.encrypted, signed)
        invalidate = None
        if channel != Channel.NONE:
            descriptors = self._descriptors(request.message[at : at + size])
            if channel == Channel.RDMA_V1_INVALIDATE:
                invalidate = descriptors[0].token
            way = self._way(request)
            if way is Way.MESSAGE:
                raise Refused(Status.INVALID_PARAMETER, "this data may not go by RDMA")
            if way is Way.CLEAR:
                answer = Answer(way, data, len(data), b"", 0, False, False)
            else:
                placed, one = self._protect(data, way)
                chain = encode_chain(Chain(Channel.NONE, (one,)))
                answer = Answer(way, placed, len(data), chain, 1, request.encrypted, signed)
        self._server.reads.append(answer)
        answer = self._server.spoil(answer)
        if answer.placed and self._transport.rdma is not None:
            remote = [RemoteBuffer(one.offset, one.token, one.length) for one in descriptors]
            self._transport.rdma.write_to_peer(remote, [answer.placed], None)
        count = len(answer.buffer) if answer.data_length < 0 else answer.data_length
        fixed = struct.pack("<HBBIII", 17, answer.data_offset, 0, count, answer.remaining, answer.flags)
        body = fixed + (answer.buffer or b"\0")
        self._reply(request, body, invalidate=invalidate, encrypted=answer.encrypted, signed=answer.signed)

    def _write(self, request: Request) -> None:
        """Take what 3.3.5.13 lets a server take."""
        data_offset, length, offset = struct.unpack_from("<HIQ", request.body, 2)
        channel, remaining, at, size = struct.unpack_from("<IIHH", request.body, 32)
        info = request.message[at : at + size]
        signed = request.header.signed and not request.encrypted
        if channel == Channel.NONE:
            self._server.writes.append(Way.MESSAGE)
            self._written(request, offset, request.message[data_offset : data_offset + length])
            return
        way = self._way(request)
        if channel == Channel.RDMA_TRANSFORM:
            rdma = self._transport.rdma is not None
            ids, cipher = self._ids, self._offer.cipher
            asked = Write(info, request.encrypted, signed, ids, cipher, rdma, remaining, MAX_SIZE, length, data_offset)
            chain = judge_write(asked)
            self._server.chains.append(chain)
            descriptors, inner = chain.descriptors, chain.channel
        elif way is Way.CLEAR:
            chain = None
            descriptors, inner = self._descriptors(info), channel
        else:
            raise Refused(Status.INVALID_PARAMETER, "data that needs a transform came without one")
        self._server.writes.append(way)
        invalidate = descriptors[0].token if inner == Channel.RDMA_V1_INVALIDATE else None
        self._fetch(request, offset, remaining, descriptors, chain, invalidate)

    def _fetch(
        self,
        request: Request,
        offset: int,
        remaining: int,
        descriptors: tuple[Descriptor, ...],
        chain: Chain | None,
        invalidate: int | None,
    ) -> None:
        memory = memoryview(bytearray(sum(one.length for one in descriptors)))

        def fetched(error: BaseException | None) -> None:
            if error is not None:
                return
            try:
                data = bytes(memory)
                if chain is not None:
                    (one,) = chain.transforms
                    encrypts = one.kind == Kind.ENCRYPTION
                    algorithm = self._offer.cipher if encrypts else self._offer.signer
                    data = check_size(unprotect(data, self._known(), one, algorithm), remaining)
                self._written(request, offset, data[:remaining], invalidate)
            except Refused as refused:
                self._server.refused.append(refused)
                self._error(request, refused.status)

        remote = [RemoteBuffer(one.offset, one.token, one.length) for one in descriptors]
        if self._transport.rdma is not None:
            self._transport.rdma.read_from_peer(remote, [memory], fetched)

    def _written(self, request: Request, offset: int, data: bytes, invalidate: int | None = None) -> None:
        content = self._server.content
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
        self._reply(request, struct.pack("<HHIIHH", 17, 0, len(data), 0, 0, 0), invalidate=invalidate)
