"""``python -m tools.bench.decoder_cost``: measure the decoders that a peer reaches before it has logged on.

Each case makes an input of a given size that is as expensive as an attacker could make it, and passes it to the decoder
as the server would. The table gives microseconds of processor time per KiB, and the growth of the cost when the input
doubles: 2 is linear.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, Principals, UserDatabase, nt_hash
from smb3server.commands import load
from smb3server.process import output
from smb3server.rpc import endpoint_mapper
from smb3server.rpc.association import Association, AssociationGroups
from smb3server.rpc.dcerpc import NDR
from smb3server.rpc.tcp import MAX_UNKNOWN_STUB
from smb3server.server.server import Server
from smb3server.wire.status import StatusError
from smbdirect.codec import Buffer
from smbdirect.core.connection import Connection, Role
from smbdirect.core.settings import Settings
from smbdirect.errors import DecodeError, ProtocolError
from smbdirect.message_transport import (
    FileRange,
    InboundMessage,
    Limits,
    PayloadTaker,
    RdmaOperations,
    Traffic,
    TransportKind,
)
from smbdirect.providers.iwarp import mpa
from smbdirect.providers.roce.cm import SERVICE_PREFIX, ConnectionManager
from smbdirect.providers.roce.cm_messages import CMA, REQ, Attribute, CmaHeader, Req, mad_bytes
from smbdirect.rdma.pool import BufferPool
from tools.failover import logon

Work = Callable[[], object]


class Case(NamedTuple):
    """A way to make a decoder work hard."""

    name: str
    prepare: Callable[[int], Work]
    """Makes an input of about so many bytes. The returned function is measured, once."""
    most: int
    """Largest input in bytes that the decoder accepts; larger ones are refused by their size."""


class Measured(NamedTuple):
    """The cost of one input."""

    size: int
    seconds: float
    """Processor time."""
    calls: int
    """Number of functions called, in Python and in C."""


# SMB2: whole messages through a connection of a server


class _Message:
    on_release: Callable[[int], None] | None = None

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))

    def release(self) -> None:
        """Do nothing: there is no buffer to return."""


class _Transport:
    """A ``message_transport.MessageTransport``; ``deliver`` passes messages to its receiver."""

    kind = TransportKind.TCP
    fabric = "tcp"
    rdma: RdmaOperations | None = None
    takes_file = False
    max_outbound_message_size = 0xFFFFFF
    max_message_size = 0
    pending_send_bytes = 0
    counters: Mapping[str, int] = {}
    traffic = Traffic()
    limits = Limits(max_message_received=0)
    peer_address = local_address = ("192.0.2.1", 445)

    def __init__(self) -> None:
        self.deliver: Callable[[InboundMessage], None] = lambda message: None
        self.sent = 0

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        self.deliver = on_message

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """Show nothing."""

    def offer_payloads(self, taker: PayloadTaker) -> None:
        """Offer none."""

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        self.sent += sum(map(len, segments))
        if on_sent is not None:
            on_sent()

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        return False

    def acquire(self, size: int) -> _Message:
        return _Message(bytes(size))

    def is_stalled(self) -> bool:
        return False

    def trust(self, max_message_size: int) -> None: ...

    def set_peer_timeout(self, seconds: float | None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, reason: str = "") -> None: ...

    def abort(self, reason: str = "") -> None: ...


def _header(command: int, message_id: int, next_command: int = 0, flags: int = 0) -> bytes:
    return (
        b"\xfeSMB"
        + struct.pack("<HHIHHIIQIIQ", 64, 1, 0, command, 64, flags, next_command, message_id, 0, 0, 0)
        + bytes(16)
    )


def _negotiated(dialect: int = 0x0210) -> _Transport:
    transport = _Transport()
    Server().accept(transport)
    if dialect:
        body = struct.pack("<HHHHI16sQH", 36, 1, 1, 0, 0, bytes(16), 0, dialect)
        transport.deliver(_Message(_header(0, 0) + body))
    return transport


def _smb2(make: Callable[[int], bytes], dialect: int = 0x0210) -> Callable[[int], Work]:
    def prepare(size: int) -> Work:
        transport = _negotiated(dialect)
        message = _Message(make(size))
        return lambda: transport.deliver(message)

    return prepare


def _dialects(size: int) -> bytes:
    count = size // 2
    return _header(0, 0) + struct.pack("<HHHHI16sQ", 36, count, 1, 0, 0, bytes(16), 0) + b"\x44\x44" * count


def _contexts(size: int) -> bytes:
    start = 64 + 36 + 4
    contexts = struct.pack("<HHIHHH", 1, 6, 0, 1, 0, 1) + bytes(2)
    count = size // 8
    for number in range(count):
        contexts += struct.pack("<HHI", 0x4000 + number % 1000, 0, 0)
    fixed = struct.pack("<HHHHI16sIHHH", 36, 1, 1, 0, 0, bytes(16), start, count + 1, 0, 0x0311)
    return _header(0, 0) + fixed + bytes(2) + contexts


def _smb1(size: int) -> bytes:
    names = b"\2A\0" * (size // 3)
    return b"\xffSMB\x72" + bytes(27) + b"\0" + len(names).to_bytes(2, "little") + names


def _compound(size: int) -> bytes:
    # The client has 64 credits by then; more requests would break the protocol.
    step = 72
    parts = [_header(13, number + 1, step, 0) + b"\4\0\0\0\0\0\0\0" for number in range(min(size // step, 60))]
    return b"".join(parts) + _header(13, 61) + b"\4\0\0\0"


def _transform(size: int) -> bytes:
    return b"\xfdSMB" + os.urandom(16) + bytes(16) + struct.pack("<IHHQ", size, 0, 1, 1) + bytes(size)


def _setup(size: int) -> bytes:
    token = _init(logon.tlv(0x06, b"\x2a" + bytes(8)) * (size // 11))
    return _header(1, 1) + struct.pack("<HBBIIHHQ", 25, 0, 1, 1, 0, 88, len(token), 0) + token


# Tokens


def _acceptor(kerberos: bool = True) -> Acceptor:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    return Acceptor(users, "SERVER", kerberos=Principals(users) if kerberos else None)


def _init(mechanisms: bytes) -> bytes:
    inner = logon.tlv(0x30, logon.tlv(0xA0, logon.tlv(0x30, mechanisms)))
    return logon.tlv(0x60, bytes.fromhex("06062b0601050502") + logon.tlv(0xA0, inner))


def _token(make: Callable[[int], bytes], *before: bytes) -> Callable[[int], Work]:
    def prepare(size: int) -> Work:
        acceptor = _acceptor()
        for token in before:
            acceptor.step(token)
        token = make(size)

        def work() -> None:
            with contextlib.suppress(StatusError):
                acceptor.step(token)

        return work

    return prepare


def _many_fields(size: int) -> bytes:
    """Return a NegTokenResp with as many fields as fit. A tag may occur only once."""
    fields = b"".join(bytes((0x80 | number % 127, 0)) for number in range(size // 2))
    return logon.tlv(0xA1, logon.tlv(0x30, fields))


def _nested(size: int) -> bytes:
    return b"\x60\x84" + size.to_bytes(4, "big") + b"\x30\x80" * (size // 2)


def _authenticate(user: bytes, response: bytes) -> bytes:
    fields = body = b""
    for part in (b"", response, b"", user, b"", b""):
        fields += struct.pack("<HHI", len(part), len(part), 64 + len(body))
        body += part
    return b"NTLMSSP\0\3\0\0\0" + fields + struct.pack("<I", 0xA2088205) + body


def _pairs(size: int) -> bytes:
    return _authenticate(b"u\0", bytes(16) + b"\1\1" + bytes(26) + b"\2\0\0\0" * (size // 4) + bytes(4))


def _name(size: int) -> bytes:
    return _authenticate("ß".encode("utf-16-le") * (size // 2), bytes(16) + b"\1\1" + bytes(30))


# RPC


def _pdu(kind: int, body: bytes, flags: int = 3, call: int = 1) -> bytes:
    return struct.pack("<BBBB4sHHI", 5, 0, kind, flags, b"\x10\0\0\0", 16 + len(body), 0, call) + body


def _bind(count: int = 1) -> bytes:
    item = struct.pack("<HBB", 0, 1, 0) + endpoint_mapper.UUID + struct.pack("<HH", 3, 0) + NDR
    return _pdu(11, struct.pack("<HHI", 4280, 4280, 0) + bytes((count, 0, 0, 0)) + item * count)


def _rpc(make: Callable[[int], bytes], bound: bool = True) -> Callable[[int], Work]:
    def prepare(size: int) -> Work:
        mapper = endpoint_mapper.EndpointMapper()
        mapper.mappings.append(endpoint_mapper.Mapping(bytes(16), 1, 0, 4711, "x"))
        association = Association("135", lambda made: [mapper.interface(made)], _acceptor, AssociationGroups())
        association.max_stub = MAX_UNKNOWN_STUB
        if bound:
            association.feed(_bind())
        data = make(size)
        return lambda: association.feed(data)

    return prepare


def _transfers(size: int) -> bytes:
    """Return contexts with as many transfer syntaxes as are allowed."""
    body = b""
    count = 0
    while len(body) + 24 < size and count < 32:
        syntaxes = min(255, (size - len(body) - 24) // 20)
        body += struct.pack("<HBB", count, syntaxes, 0) + bytes(20) + os.urandom(20) * syntaxes
        count += 1
    return _pdu(11, struct.pack("<HHI", 4280, 4280, 0) + bytes((count, 0, 0, 0)) + body)


def _fragments(size: int) -> bytes:
    begin = _pdu(0, struct.pack("<IHH", 0, 0, 3), flags=1)
    return begin + _pdu(0, struct.pack("<IHH", 0, 0, 3) + b"x", flags=0) * (size // 25)


def _tower(size: int) -> bytes:
    size = min(size, 4000)
    tower = struct.pack("<H", size // 4) + bytes(size)
    stub = struct.pack("<IIII", 0, 1, len(tower), len(tower)) + tower + bytes(-len(tower) & 3) + bytes(20) + b"\4\0\0\0"
    return _pdu(0, struct.pack("<IHH", len(stub), 0, 3) + stub)


# RDMA


def _mpa(size: int) -> Work:
    frame = mpa.REQUEST_KEY + struct.pack(">BBH", 0x10, 2, min(size, 512)) + os.urandom(min(size, 512))

    def work() -> None:
        with contextlib.suppress(ProtocolError):
            mpa.check_request(mpa.decode_frame(frame, mpa.REQUEST_KEY))

    return work


def _smbd(data: Callable[[int], list[bytes]], negotiated: bool) -> Callable[[int], Work]:
    def prepare(size: int) -> Work:
        core = Connection(Role.PASSIVE, Settings(), 0.0, BufferPool().acquire)
        if negotiated:
            core.receives_were_posted(core.receives_wanted)
            core.receive_message(memoryview(struct.pack("<HHHHIII", 0x100, 0x100, 0, 255, 1364, 1364, 131072)), 0.0)
            core.receives_were_posted(core.receives_wanted)
            core.pending_sends(0.0)
        messages = data(size)

        def work() -> None:
            with contextlib.suppress(ProtocolError, DecodeError):
                for message in messages:
                    core.receive_message(memoryview(message), 0.0)
                    core.receives_were_posted(core.receives_wanted)
                    core.pending_sends(0.0)

        return work

    return prepare


def _pieces(size: int) -> list[bytes]:
    """Return data transfer messages with one byte of an upper-layer message each."""
    count = size // 25
    return [
        struct.pack("<HHHHIII", 255, 1, 0, 0, count - number - 1, 24, 1) + bytes(4) + b"x" for number in range(count)
    ]


def _mads(size: int) -> Work:
    manager = ConnectionManager(lambda bits: int.from_bytes(os.urandom(bits // 8), "big"), lambda path, port: True)
    cma = CMA.pack(CmaHeader(0, 0x40, 1234, bytes(16), bytes(16))) + bytes(56)
    datagrams = [
        mad_bytes(
            Attribute.REQ,
            number,
            REQ.pack(
                Req(
                    local_id=number + 1,
                    service_id=SERVICE_PREFIX | 445,
                    qpn=0x1234 << 8,
                    path_mtu=0x30,
                    private_data=cma,
                )
            ),
        )
        for number in range(size // 256)
    ]

    def work() -> None:
        for number, datagram in enumerate(datagrams):
            manager.receive(memoryview(datagram), f"10.0.{number >> 8}.{number & 255}", number * 0.001)
            manager.outbox.clear()
            manager.events.clear()

    return work


CASES = (
    Case("NEGOTIATE: dialects", _smb2(_dialects, 0), 69_000),
    Case("NEGOTIATE: contexts", _smb2(_contexts, 0), 69_000),
    Case("SMB1 NEGOTIATE", _smb2(_smb1, 0), 65_000),
    Case("compound of ECHOs", _smb2(_compound), 4400),
    Case("transform header", _smb2(_transform), 69_000),
    Case("SESSION_SETUP: mechanisms", _smb2(_setup), 65_000),
    Case("SPNEGO: mechanisms", _token(lambda size: _init(logon.tlv(0x06, b"\x2a" + bytes(8)) * (size // 11))), 65_000),
    Case("SPNEGO: one mechanism", _token(lambda size: _init(logon.tlv(0x06, b"\x2a" + b"\x81" * size))), 65_000),
    Case("SPNEGO: fields", _token(_many_fields, logon.FIRST_TOKEN), 65_000),
    Case("SPNEGO: nested", _token(_nested), 65_000),
    Case("NTLM: AvPairs", _token(_pairs, logon.NEGOTIATE), 8000),
    Case("NTLM: name", _token(_name, logon.NEGOTIATE), 8000),
    Case("RPC: bind", _rpc(_transfers, bound=False), 65_000),
    Case("RPC: fragments", _rpc(_fragments), 65_000),
    Case("endpoint mapper: tower", _rpc(_tower), 4000),
    Case("MPA request", _mpa, 512),
    Case("SMB Direct: negotiate", _smbd(lambda size: [os.urandom(20)], False), 20),
    Case("SMB Direct: pieces", _smbd(_pieces, True), 65_000),
    Case("CM: requests", _mads, 65_000),
)


def seconds(case: Case, size: int, rounds: int = 3) -> float:
    """Return the processor time for one input, the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        work = case.prepare(size)
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def calls(case: Case, size: int) -> int:
    """Return the number of functions that the decoder calls for one input."""
    work = case.prepare(size)
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


async def _table() -> None:
    print(f"{'decoder':28} {'bytes':>7} {'µs/KiB':>8} {'calls/KiB':>10} {'twice as long':>14}")
    for case in CASES:
        size = case.most
        half, whole = calls(case, size // 2), calls(case, size)
        spent = seconds(case, size)
        print(
            f"{case.name:28} {size:7} {spent / size * 1024e6:8.1f} {whole / size * 1024:10.1f} "
            f"{whole / max(half, 1):14.2f}"
        )


def main() -> int:
    """Print the table."""
    logging.disable(logging.CRITICAL)
    load()
    asyncio.run(_table())
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
