"""Runs against RPC: named pipes of a session, and the TCP ports of the Witness service and the endpoint mapper."""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
from typing import Any

from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.wire.status import StatusError
from smbdirect.errors import ConnectionLost, DecodeError, ProtocolError
from tools.fuzz.mutation import mutate
from tools.fuzz.smb import Profile, Told, connect
from tools.fuzz.watch import LOGINS, Failed, Watch
from tools.support.server_process import listening_ports

PDUS = 60
"""PDUs per run."""
_PIPES = {
    "srvsvc": ("4B324FC8-1670-01D3-1278-5A47BF6EE188", 3, 0),
    "wkssvc": ("6BFFD098-A112-3610-9833-46C3F87E345A", 1, 0),
    "samr": ("12345778-1234-ABCD-EF00-0123456789AC", 1, 0),
    "lsarpc": ("12345778-1234-ABCD-EF00-0123456789AB", 0, 0),
    "svcctl": ("367ABB81-9844-35F1-AD32-98F038001003", 2, 0),
    "winreg": ("338CD001-2244-31F1-AAAA-900038001003", 1, 0),
    "eventlog": ("82273FDC-E32A-18C3-3F78-827929DC23EA", 0, 0),
}
WITNESS = ("ccd8c074-d0e5-4a40-92b4-d074faa6ba28", 1, 1)
MAPPER = ("E1AF8308-5D1F-11C9-91A4-08002B14A0FA", 3, 0)
_NDR = uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le + struct.pack("<I", 2)
_REQUEST, _BIND, _ALTER_CONTEXT = 0, 11, 14
_TRANSCEIVE = 0x0011C017
_BROKEN_PIPES = {0xC00000B0, 0xC000014B, 0xC0000022, 0xC0000128}
_GONE = (OSError, ConnectionLost, ProtocolError, DecodeError, TimeoutError)


def pdu(kind: int, body: bytes, flags: int = 3, call: int = 1, auth: bytes = b"", auth_type: int = 10) -> bytes:
    """Return a connection-oriented PDU. [C706 12.6.3]"""
    trailer = struct.pack("<BBBBI", auth_type, 6, 0, 0, 1) + auth if auth else b""
    length = (16 + len(body) + len(trailer)) & 0xFFFF
    return struct.pack("<BBBB4sHHI", 5, 0, kind, flags, b"\x10\0\0\0", length, len(auth), call) + body + trailer


def bind(interface: tuple[str, int, int], count: int = 1) -> bytes:
    """Return the body of a bind that offers the interface ``count`` times."""
    number, major, minor = interface
    syntax = uuid.UUID(number).bytes_le + struct.pack("<HH", major, minor) + _NDR
    offers = b"".join(struct.pack("<HBB", index, 1, 0) + syntax for index in range(count))
    return struct.pack("<HHI", 4280, 4280, 0) + bytes((count & 0xFF, 0, 0, 0)) + offers


def request(number: int, stub: bytes) -> bytes:
    """Return the body of a request PDU."""
    return struct.pack("<IHH", len(stub), 0, number) + stub


def _text(value: str) -> bytes:
    """Return a conformant and varying string of UTF-16, padded to four bytes."""
    encoded = (value + "\0").encode("utf-16-le")
    count = len(encoded) // 2
    return struct.pack("<III", count, 0, count) + encoded + bytes(-len(encoded) % 4)


def stubs_of(name: str) -> list[tuple[int, bytes]]:
    """Return well-formed arguments of calls to the pipe's interface, by operation number."""
    unc = struct.pack("<I", 0x20000) + _text("\\\\SERVER")
    handle = bytes(20)
    if name == "srvsvc":
        enumerate_ = [
            (15, unc + struct.pack("<IIIII", level, level, 0x20004, 0, 0) + struct.pack("<II", 0xFFFFFFFF, 0))
            for level in (0, 1, 2, 501, 502)
        ]
        details = [(16, unc + _text("data") + struct.pack("<I", level)) for level in (0, 1, 2, 502)]
        return [*enumerate_, *details, *[(21, unc + struct.pack("<I", level)) for level in (100, 101, 102)], (28, unc)]
    if name == "wkssvc":
        return [(0, unc + struct.pack("<I", level)) for level in (100, 101, 102)]
    if name in ("svcctl", "winreg", "eventlog"):
        return _administration_stubs(name, unc, handle)
    sid = struct.pack("<I", 4) + struct.pack("<BB6s4I", 1, 4, b"\0\0\0\0\0\5", 21, 1, 2, 3)
    if name == "samr":
        return [
            (0, struct.pack("<II", 0x20000, 0x5C) + struct.pack("<I", 0x2000000)),
            (57, unc + struct.pack("<I", 0x2000000)),
            (6, handle + struct.pack("<II", 0, 8192)),
            (7, handle + struct.pack("<I", 0x2000000) + sid),
            (5, handle + struct.pack("<HHI", 12, 12, 0x20000) + _text("SERVER")),
            (13, handle + struct.pack("<III", 0, 0, 8192)),
            (17, handle + struct.pack("<III", 1, 1000, 0) + struct.pack("<IHHI", 1, 10, 10, 0x20000) + _text("carol")),
            (18, handle + struct.pack("<IIII", 1, 1000, 0, 1) + struct.pack("<I", 1000)),
            (34, handle + struct.pack("<II", 0x2000000, 1000)),
            (36, handle + struct.pack("<H", 21)),
            (1, handle),
        ]
    policy = struct.pack("<IIIIIII", 0, 24, 0, 0, 0, 0, 0) + struct.pack("<I", 0x2000000)
    some = struct.pack("<II", 1, 0x20000) + struct.pack("<II", 1, 0x20004) + sid + struct.pack("<IIHHI", 0, 0, 1, 0, 0)
    return [
        (44, unc + policy),
        (46, handle + struct.pack("<H", 5)),
        (7, handle + struct.pack("<H", 3)),
        (15, handle + some),
        (57, handle + some + struct.pack("<II", 0, 2)),
        (
            14,
            handle
            + struct.pack("<IIHHI", 1, 1, 10, 10, 0x20000)
            + _text("carol")
            + struct.pack("<IIHHI", 0, 0, 1, 0, 0),
        ),
        (45, unc + struct.pack("<II", 0, 0)),
        (0, handle),
    ]


def _administration_stubs(name: str, unc: bytes, handle: bytes) -> list[tuple[int, bytes]]:
    """Return what ``stubs_of`` does, for services, registry and event log."""
    anything, key = 0x2000000, struct.pack("<HHI", 14, 14, 0x20000) + _text("SYSTEM")
    if name == "svcctl":
        return [
            (15, unc + struct.pack("<II", 0, anything)),
            (16, handle + _text("LanmanServer") + struct.pack("<I", anything)),
            (14, handle + struct.pack("<IIII", 0x30, 3, 4096, 0)),
            (42, handle + struct.pack("<IIIIII", 0, 0x30, 3, 4096, 0, 0)),
            *((number, handle + struct.pack("<II", 1, 512)) for number in (1, 4, 13, 39, 40)),
            *((number, handle + struct.pack("<I", 512)) for number in (0, 2, 6, 17, 18, 19)),
            (20, handle + _text("EventLog") + struct.pack("<I", 64)),
        ]
    if name == "winreg":
        buffers = struct.pack("<IIIIIIII", 0x20004, 0, 0x20008, 64, 0, 0, 0x2000C, 64) + struct.pack("<II", 0x20010, 0)
        return [
            *((number, struct.pack("<II", 0, anything)) for number in (0, 1, 2, 4, 27)),
            (15, handle + key + struct.pack("<II", 0, anything)),
            (9, handle + struct.pack("<IHHIIII", 0, 0, 512, 0x20000, 256, 0, 0) + bytes(8)),
            (10, handle + struct.pack("<IHHIIII", 0, 0, 512, 0x20000, 256, 0, 0) + buffers),
            (17, handle + key + buffers),
            (16, handle + struct.pack("<HHI", 0, 0, 0)),
            (12, handle + struct.pack("<IIII", 4, 0, 1024, 0)),
            (34, handle + struct.pack("<IIIIIIIII", 0, 0, 0, 0, 0, 0x20000, 64, 0, 64)),
            *((number, handle) for number in (5, 7, 11, 26)),
        ]
    module = struct.pack("<HHI", 12, 12, 0x20004) + _text("System")[:-2]
    return [
        (7, struct.pack("<I", 0) + module + bytes(8) + struct.pack("<II", 1, 1)),
        (10, handle + struct.pack("<III", 5, 0, 4096)),
        (10, handle + struct.pack("<III", 10, 1, 0)),
        (22, handle + struct.pack("<II", 0, 4)),
        *((number, handle + bytes(8)) for number in (0, 1, 2, 4, 5, 11)),
    ]


def _tcp_stubs() -> list[tuple[tuple[str, int, int], int, bytes]]:
    name, address = _text("FILES"), _text("127.0.0.1")
    pointers = struct.pack("<IIIII", 0x20000, 0x20004, 0x20008, 0x2000C, 0x20010)
    tower = struct.pack("<II", 75, 75) + b"\5\0\x13\0\r" + uuid.UUID(WITNESS[0]).bytes_le + b"\1\0\2\0\1\0"
    tower += b"\x13\0\r" + _NDR[:18] + b"\2\0\0\0" + b"\1\0\x0b\2\0\0\0\1\0\7\2\0\0\0\1\0\t\4\0\0\0\0\0\0"
    return [
        (WITNESS, 0, b""),
        (WITNESS, 1, struct.pack("<I", 0x10001) + pointers[:12] + name + address + name),
        (WITNESS, 4, struct.pack("<I", 0x20000) + pointers[:16] + struct.pack("<II", 0, 1) + name + address + name),
        (WITNESS, 2, bytes(20)),
        (WITNESS, 3, bytes(20)),
        (WITNESS, 5, bytes(20)),
        (MAPPER, 3, struct.pack("<II", 0, 1) + tower + bytes(20) + struct.pack("<I", 4)),
        (MAPPER, 3, bytes(28) + struct.pack("<I", 4)),
        (MAPPER, 2, bytes(40) + struct.pack("<I", 10)),
        (MAPPER, 4, bytes(20)),
    ]


class PipeRun:
    """One run: a pipe, or a TCP connection, and a bind with calls on it."""

    def __init__(self, watch: Watch, seed: str) -> None:
        self._watch = watch
        self._chance = random.Random(seed)
        self._handles: list[bytes] = []
        self.told = Told()

    async def do(self) -> Told:
        """Do the run. Raises ``Failed`` for an INTERNAL_ERROR."""
        try:
            async with asyncio.timeout(30):
                if self._chance.random() < 0.6:
                    await self._pipe()
                else:
                    await self._tcp()
        except (*_GONE, StatusError):
            pass  # A disconnect or a refusal is a valid answer, too.
        return self.told

    def _sent(self, data: bytes) -> bytes:
        self.told.requests += 1
        self.told.last.append(data)
        del self.told.last[:-40]
        return data

    def _next(self, stubs: list[tuple[int, bytes]], interface: tuple[str, int, int]) -> bytes:
        chance = self._chance
        number, stub = chance.choice(stubs)
        if self._handles and len(stub) >= 20 and chance.random() < 0.7:
            stub = chance.choice(self._handles) + stub[20:]
        if chance.random() < 0.7:
            stub = mutate(chance, stub, 6)
        match chance.randrange(12):
            case 0:
                return mutate(chance, pdu(_REQUEST, request(number, stub)))
            case 1:
                return pdu(_REQUEST, request(number, stub[:8]), 1) + pdu(
                    _REQUEST, request(number, stub[8:]), chance.choice((0, 2, 3))
                )
            case 2:
                auth = chance.choice((b"", b"NTLMSSP\0\1\0\0\0" + bytes(30)))
                body = mutate(chance, bind(interface, chance.choice((1, 2, 30, 255))))
                return pdu(
                    chance.choice((_BIND, _ALTER_CONTEXT)), body, auth=auth, auth_type=chance.choice((9, 10, 16))
                )
            case 3:
                return pdu(chance.randrange(22), chance.randbytes(chance.randint(0, 100)), chance.getrandbits(8))
            case 4:
                return chance.randbytes(chance.randint(1, 200))
            case 5:
                return pdu(_REQUEST, request(chance.randrange(100), stub))
            case _:
                return pdu(_REQUEST, request(number, stub))

    def _note(self, answer: bytes) -> None:
        """Remember a possible context handle: the first 20 bytes of a response's stub."""
        if len(answer) >= 48 and answer[2] == 2:
            self._handles.append(answer[24:44])
            del self._handles[:-10]

    async def _pipe(self) -> None:
        chance = self._chance
        client = await connect(self._watch.server, Profile(0x0311, Offer(), sign=True), chance.randbytes(16))
        try:
            session = await client.log_on(*chance.choice((*LOGINS, ("nobody-known", "x"))), sign=False, guest=True)
            tree = await session.tree_connect("IPC$")
            name = chance.choice(list(_PIPES))
            file = await tree.create(name, 0x12019F, 1)
            await tree.ioctl(_TRANSCEIVE, pdu(_BIND, bind(_PIPES[name])), file)
            for _ in range(PDUS):
                self.told.steps += 1
                status = await self._transceive(tree, file, self._next(stubs_of(name), _PIPES[name]))
                self.told.statuses[status] += 1
                if status == 0xC00000E5:
                    raise Failed(f"INTERNAL_ERROR was answered to a call of {name}")
                if status in _BROKEN_PIPES:
                    break
        finally:
            client.transport.abort("the run ends")

    async def _transceive(self, tree: Tree, file: RemoteFile, data: bytes) -> int:
        try:
            async with asyncio.timeout(5):
                self._note(await tree.ioctl(_TRANSCEIVE, self._sent(data), file, accept=(0, 0x80000005)))
        except StatusError as error:
            return int(error.status)
        except TimeoutError:
            return 0x102
        return 0

    async def _tcp(self) -> None:
        chance, server = self._chance, self._watch.server
        ports = sorted(listening_ports(server.pid) - {server.port, server.ports.get("iwarp", 0)})
        every = _tcp_stubs()
        interface = chance.choice((WITNESS, MAPPER))
        stubs = [(number, stub) for of, number, stub in every if of == interface]
        reader, writer = await asyncio.open_connection("127.0.0.1", chance.choice(ports))
        try:
            first = pdu(_BIND, bind(interface), auth=chance.choice((b"", b"", b"NTLMSSP\0\1\0\0\0" + bytes(28))))
            writer.write(self._sent(first if chance.random() < 0.8 else mutate(chance, first)))
            for _ in range(chance.randint(1, 20)):
                self.told.steps += 1
                writer.write(self._sent(self._next(stubs, interface)))
                await writer.drain()
                answer = await self._answer(reader)
                if not answer:
                    return
                self._note(answer)
        finally:
            writer.transport.abort()

    @staticmethod
    async def _answer(reader: asyncio.StreamReader) -> Any:
        try:
            async with asyncio.timeout(0.2):
                return await reader.read(65536)
        except TimeoutError:
            return b"none yet"
