"""A client that sends exactly what a test wants, over TCP, to a server in the same event loop."""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import spnego

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.crypto.encryption import TRANSFORM, SessionCipher, TransformHeader
from smb3server.crypto.kdf import derive_session_keys
from smb3server.crypto.signing import GmacSigner, Signer, make_signer
from smb3server.net.listener import TcpListener
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.wire.header import HEADER, HEADER_SIZE, Command, Header, HeaderFlags
from tests.lab.shares import share_of
from tests.lab.slow_shares import INTERIM_DELAY

NO_FILE = b"\xff" * 16
ECHO = struct.pack("<HH", 4, 0)


class Reply:
    def __init__(self, message: bytes) -> None:
        self.header = HEADER.unpack(message)
        self.message = message
        self.body = message[HEADER_SIZE:]

    @property
    def status(self) -> int:
        return self.header.status


def context(kind: int, data: bytes) -> bytes:
    return struct.pack("<HHI", kind, len(data), 0) + data


def contexts_for(cipher: int = 2, signing: int = 2) -> list[bytes]:
    return [
        context(1, struct.pack("<HHH", 1, 32, 1) + os.urandom(32)),
        context(2, struct.pack("<HH", 1, cipher)),
        context(8, struct.pack("<HH", 1, signing)),
    ]


def negotiate_body(
    dialects: tuple[int, ...],
    contexts: list[bytes] | None = None,
    guid: bytes = bytes(16),
    mode: int = 1,
    capabilities: int = 0x7F,
) -> bytes:
    body = b"".join(struct.pack("<H", dialect) for dialect in dialects)
    tail = b""
    offset = count = 0
    if contexts:
        offset = HEADER_SIZE + 36 + len(body)
        padding = -offset & 7
        offset += padding
        tail = bytes(padding)
        for entry in contexts:
            tail += bytes(-len(tail) + padding & 7) + entry
        count = len(contexts)
    return struct.pack("<HHHHI16sIHH", 36, len(dialects), mode, 0, capabilities, guid, offset, count, 0) + body + tail


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.message_id = 0
        self.session_id = 0
        self.tree_id = 0
        self.dialect = 0
        self.cipher_id = 0
        self.signing_id = 0
        self.preauth = bytes(64)
        self.guid = os.urandom(16)
        self.signer: Signer | None = None
        self.cipher: SessionCipher | None = None
        self.encrypt = False
        self.sign = False
        self.session_key = b""

    # Bytes

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self, message: bytes) -> None:
        await self.raw(len(message).to_bytes(4, "big") + message)

    async def receive_frame(self) -> bytes:
        async with asyncio.timeout(10):
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(length)

    async def closed(self) -> bool:
        """Wait for the server to close the connection without another message."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    # Messages

    def build(self, command: int, body: bytes, **fields: Any) -> bytes:
        values: dict[str, Any] = {
            "credit_charge": 1,
            "command": command,
            "credits": 32,
            "message_id": self.message_id,
            "session_id": self.session_id,
            "tree_id": self.tree_id,
        }
        if "message_id" not in fields:
            self.message_id += fields.get("credit_charge", 1) or 1
        values.update(fields)
        return HEADER.pack(Header(**values)) + body

    def signed(self, message: bytes) -> bytes:
        assert self.signer is not None
        data = bytearray(message)
        flags = int.from_bytes(data[16:20], "little") | HeaderFlags.SIGNED
        data[16:20] = flags.to_bytes(4, "little")
        data[48:64] = bytes(16)
        data[48:64] = self.signer.expect(memoryview(data))
        return bytes(data)

    def sealed(self, message: bytes) -> bytes:
        assert self.cipher is not None
        buffer = bytearray(52 + len(message) + 16)
        self.cipher.encrypt((message,), len(message), memoryview(buffer))
        return bytes(buffer[:-16])

    async def post(self, command: int, body: bytes, **fields: Any) -> None:
        message = self.build(command, body, **fields)
        if self.encrypt:
            message = self.sealed(message)
        elif self.sign:
            message = self.signed(message)
        await self.frame(message)

    async def receive(self) -> Reply:
        return (await self.receive_compound())[0]

    async def receive_compound(self) -> list[Reply]:
        message = await self.receive_frame()
        if message[:4] == b"\xfdSMB":
            assert self.cipher is not None
            plain = self.cipher.decrypt(memoryview(bytearray(message)))
            assert plain is not None
            message = bytes(plain)
        replies = []
        start = 0
        while True:
            step = int.from_bytes(message[start + 20 : start + 24], "little")
            part = message[start : start + step] if step else message[start:]
            replies.append(Reply(part))
            if not step:
                return replies
            start += step

    async def call(self, command: int, body: bytes, **fields: Any) -> Reply:
        await self.post(command, body, **fields)
        reply = await self.receive()
        while reply.status == 0x103:
            reply = await self.receive()
        return reply

    # Set-up

    async def negotiate(
        self,
        dialect: int = 0x0311,
        cipher: int = 2,
        signing: int = 2,
        contexts: list[bytes] | None = None,
        capabilities: int = 0x7F,
    ) -> Reply:
        if contexts is None and dialect == 0x0311:
            contexts = contexts_for(cipher, signing)
        message = self.build(
            Command.NEGOTIATE, negotiate_body((dialect,), contexts, self.guid, capabilities=capabilities)
        )
        await self.frame(message)
        reply = await self.receive()
        if not reply.status:
            self.dialect = dialect
            if dialect == 0x0311:
                for part in (message, reply.message):
                    self.preauth = hashlib.sha512(self.preauth + part).digest()
                self.cipher_id, self.signing_id = cipher, signing
            elif dialect >= 0x0300:
                self.cipher_id, self.signing_id = 1, 1
        return reply

    async def session_setup(
        self,
        user: str = "u",
        password: str = "pw",
        binding: bool = False,
        previous: int = 0,
        mode: int = 1,
        context: Any = None,
    ) -> Reply:
        """``context``: a security context in place of one for ``user``."""
        context = context or spnego.client(user, password, protocol="ntlm", hostname="server", service="cifs")
        preauth = self.preauth
        token = context.step()
        while True:
            body = struct.pack("<HBBIIHHQ", 25, int(binding), mode, 1, 0, 88, len(token), previous) + token
            message = self.build(Command.SESSION_SETUP, body)
            if binding or self.sign:
                message = self.signed(message)
            preauth = hashlib.sha512(preauth + message).digest()
            await self.frame(message)
            reply = await self.receive()
            if reply.status != 0xC0000016:
                break
            preauth = hashlib.sha512(preauth + reply.message).digest()
            self.session_id = reply.header.session_id
            offset, length = struct.unpack_from("<HH", reply.body, 4)
            token = context.step(reply.message[offset : offset + length]) or b""
        if reply.status or (self.session_key and not binding):
            return reply
        key = self.session_key = context.session_key
        keys = derive_session_keys(self.dialect, key[:16], key, self.cipher_id, preauth)
        self.signer = make_signer(self.signing_id, keys.signing)
        self.sign = True
        if self.cipher_id and not binding:
            self.cipher = SessionCipher(self.cipher_id, self.session_id, keys.decryption, keys.encryption)
        return reply

    async def tree_connect(self, share: str = "share") -> Reply:
        path = f"\\\\server\\{share}".encode("utf-16-le")
        reply = await self.call(Command.TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, len(path)) + path, tree_id=0)
        if not reply.status:
            self.tree_id = reply.header.tree_id
        return reply

    async def login(self, dialect: int = 0x0311, share: str = "share", **options: Any) -> None:
        assert (await self.negotiate(dialect, **options)).status == 0
        assert (await self.session_setup()).status == 0
        assert (await self.tree_connect(share)).status == 0

    async def open(self, name: str, disposition: int = 3, access: int = 0x0012019F, options: int = 0) -> Reply:
        return await self.call(Command.CREATE, create_body(name, disposition, access, options))


def create_body(name: str, disposition: int = 3, access: int = 0x0012019F, options: int = 0) -> bytes:
    path = name.encode("utf-16-le")
    fixed = struct.pack("<HBBIQQIIIIIHHII", 57, 0, 0, 2, 0, 0, access, 0, 7, disposition, options, 120, len(path), 0, 0)
    return fixed + (path or b"\0")


def ioctl_body(code: int, data: bytes = b"", file_id: bytes = NO_FILE, output: int = 65536) -> bytes:
    return struct.pack("<HHI16sIIIIIIII", 57, 0, code, file_id, 120, len(data), 0, 0, 0, output, 1, 0) + (data or b"\0")


def server_signature(signer: Signer, reply: Reply) -> bytes:
    data = bytearray(reply.message)
    data[48:64] = bytes(16)
    if isinstance(signer, GmacSigner):
        return signer.sign((data,), reply.header.message_id)
    return signer.expect(memoryview(data))


class Harness:
    def __init__(self, server: Server, listener: TcpListener) -> None:
        self.server = server
        self.listener = listener
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(*self.listener.address)
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    async def settled(self) -> None:
        """Wait until the server noticed that its connections are gone, and slow storage has closed their files."""
        async with asyncio.timeout(10):
            while self.server.connection_list:
                await asyncio.sleep(0.005)
            queues = [share.queue for share in self.server.share_list.values() if share.queue is not None]
            while not all(queue.is_idle for queue in queues):
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(settings: Settings | None = None, **share: Any) -> AsyncIterator[Harness]:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    users.add(Account("other", nt_hash("pw")))
    settings = settings or Settings(min_dialect=0x0202, rdma_min_dialect=0x0202)
    settings.failed_logon_delay = 0.0
    settings.interim_delay = INTERIM_DELAY
    server = Server(settings, users)
    server.add_share(share_of("share", MemoryBackend(), **share))
    listener = TcpListener("127.0.0.1", 0, server.buffers, server.accept, settings.max_message_before_authentication)
    harness = Harness(server, listener)
    try:
        yield harness
    finally:
        for client in harness.clients:
            client.writer.close()
        await listener.close()
        await server.shutdown(2.0)


__all__ = ["TRANSFORM", "Client", "Harness", "Reply", "TransformHeader", "running"]


RELATED = int(HeaderFlags.RELATED_OPERATIONS)


def drive(test: Callable[[Harness], Awaitable[None]], settings: Settings | None = None) -> None:
    async def body() -> None:
        async with running(settings) as harness:
            await test(harness)
            for client in harness.clients:
                client.writer.close()
            await harness.settled()
            server = harness.server
            assert not server.sessions.by_id
            assert not server.opens.by_id
            assert len(server.file_table) == 0
            assert server.buffers.lent == 0

    asyncio.run(body())


def compound(client: Client, *parts: bytes) -> bytes:
    message = b""
    for index, part in enumerate(parts):
        if index < len(parts) - 1:
            part = part + bytes(-len(part) & 7)
            part = part[:20] + struct.pack("<I", len(part)) + part[24:]
        message += client.signed(part) if client.sign else part
    return message


def related(client: Client, command: int, body: bytes) -> bytes:
    return client.build(command, body, flags=RELATED, session_id=(1 << 64) - 1, tree_id=(1 << 32) - 1)


def setup_body(token: bytes, flags: int = 0) -> bytes:
    return struct.pack("<HBBIIHHQ", 25, flags, 1, 1, 0, 88, len(token), 0) + (token or b"\0")
