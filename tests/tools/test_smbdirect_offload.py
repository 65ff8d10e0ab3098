"""What goes by RDMA and what stays in the message, request by request."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from smb3server.lab.proxy.offload import THRESHOLD, Offload, Outgoing
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.read_write import (
    READ_REQUEST,
    READ_RESPONSE,
    TAIL,
    WRITE_REQUEST,
    Channel,
    ReadRequest,
    ReadResponse,
    WriteRequest,
    descriptors,
)
from smbdirect.message_transport import RemoteBuffer

SIGNED, RELATED, RESPONSE = 8, 4, 1
PENDING, END_OF_FILE = 0x103, 0xC0000011


class Message:
    """Inbound, or a pooled buffer; keeps count of its releases."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))
        self.releases = 0

    def release(self) -> None:
        self.releases += 1


class Region:
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.descriptors = (RemoteBuffer(0x1000, 7, len(view)),)
        self.exposed = True

    def deregister(self) -> None:
        self.exposed = False


class Server:
    """What the offload needs of a transport."""

    max_read_write_size = 1 << 20
    regions_invalidatable = True

    def __init__(self) -> None:
        self.regions: list[tuple[Region, bool, bool]] = []
        self.buffers: list[Message] = []
        self.rdma = self

    def register(self, view: memoryview, *, readable: bool = False, writable: bool = False) -> Region:
        self.regions.append((Region(view), readable, writable))
        return self.regions[-1][0]

    def acquire(self, size: int) -> Message:
        self.buffers.append(Message(bytes(size)))
        return self.buffers[-1]


def header(command: int, flags: int = 0, message_id: int = 5, status: int = 0, following: int = 0) -> bytes:
    head = struct.pack("<4sHHIHHIIQ", b"\xfeSMB", 64, 1, status, command, 1, flags, following, message_id)
    return head.ljust(HEADER_SIZE, b"\0")


def write(data: bytes, **fields: int) -> Message:
    record = WriteRequest(data_offset=TAIL, length=len(data), offset=77)
    return Message(header(Command.WRITE, **fields) + WRITE_REQUEST.pack(record) + data)


def read(length: int, **fields: int) -> Message:
    return Message(header(Command.READ, **fields) + READ_REQUEST.pack(ReadRequest(length=length)) + b"\0")


def answer(command: int, body: bytes, status: int = 0, message_id: int = 5, flags: int = RESPONSE) -> Message:
    return Message(header(command, flags, message_id, status) + body)


def joined(outgoing: Outgoing) -> bytes:
    return b"".join(bytes(segment) for segment in outgoing.segments)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def offload(server: Server) -> Offload:
    stand_in: Any = server
    made = Offload(stand_in)
    made.response(answer(Command.NEGOTIATE, struct.pack("<HHH", 65, 1, 0x0311).ljust(64, b"\0")))
    return made


DATA = bytes(range(256)) * 32


def test_write(server: Server, offload: Offload) -> None:
    request = write(DATA)
    outgoing = offload.request(request)
    sent = memoryview(joined(outgoing))
    record = WRITE_REQUEST.unpack(sent, HEADER_SIZE)
    assert (record.length, record.data_offset, record.remaining_bytes, record.offset) == (0, 0, len(DATA), 77)
    assert record.channel == Channel.RDMA_V1_INVALIDATE
    assert [part.length for part in descriptors(sent, TAIL, record.channel_info_length)] == [len(DATA)]
    ((region, readable, writable),) = server.regions
    assert (bytes(region.view), readable, writable) == (DATA, True, False)
    outgoing.on_sent()
    assert request.releases == 0
    interim = answer(Command.WRITE, bytes(9), PENDING)
    assert joined(offload.response(interim)) == bytes(interim.view)
    assert region.exposed and offload.held_bytes == len(DATA)
    done = answer(Command.WRITE, bytes(17))
    assert joined(offload.response(done)) == bytes(done.view)
    assert (request.releases, region.exposed, offload.held_bytes) == (1, False, 0)


def test_read(server: Server, offload: Offload) -> None:
    request = read(len(DATA))
    offload.request(request).on_sent()
    assert request.releases == 1
    ((region, readable, writable),) = server.regions
    assert (readable, writable) == (False, True)
    region.view[:5000] = DATA[:5000]
    reply = answer(Command.READ, READ_RESPONSE.pack(ReadResponse(data_offset=80, data_remaining=5000)))
    outgoing = offload.response(reply)
    got = joined(outgoing)
    record = READ_RESPONSE.unpack(got, HEADER_SIZE)
    assert (record.data_offset, record.data_length, record.data_remaining) == (80, 5000, 0)
    assert got[80:] == DATA[:5000]
    assert not region.exposed and server.buffers[0].releases == 0
    outgoing.on_sent()
    assert (server.buffers[0].releases, reply.releases) == (1, 1)


@pytest.mark.parametrize(
    "reply",
    [
        answer(Command.READ, struct.pack("<HBBIB", 9, 0, 0, 0, 0), END_OF_FILE),
        answer(Command.READ, READ_RESPONSE.pack(ReadResponse(data_offset=80, data_length=3)) + b"abc"),
        answer(Command.READ, b"\x11"),
    ],
    ids=["error", "pipe", "short"],
)
def test_answers_without_data_in_memory(server: Server, offload: Offload, reply: Message) -> None:
    offload.request(read(len(DATA))).on_sent()
    assert joined(offload.response(reply)) == bytes(reply.view)
    assert (server.buffers[0].releases, offload.held_bytes) == (1, 0)


@pytest.mark.parametrize(
    "request_",
    [
        write(DATA, flags=SIGNED),
        write(DATA, flags=RELATED),
        write(DATA, following=4000),
        write(DATA[: THRESHOLD - 1]),
        write(bytes(Server.max_read_write_size + 1)),
        read(THRESHOLD - 1),
        read(THRESHOLD, flags=SIGNED),
        Message(bytes(write(DATA).view)[:-1]),
        Message(b"\xfdSMB" + bytes(200)),
        Message(b""),
    ],
)
def test_what_stays_in_the_message(server: Server, offload: Offload, request_: Message) -> None:
    outgoing = offload.request(request_)
    assert joined(outgoing) == bytes(request_.view)
    assert server.regions == []


def test_dialects_without_rdma(server: Server) -> None:
    stand_in: Any = server
    offload = Offload(stand_in)
    for dialect in (0x0202, 0x0210, 0x02FF):
        offload.response(answer(Command.NEGOTIATE, struct.pack("<HHH", 65, 1, dialect).ljust(64, b"\0")))
        offload.request(write(DATA))
    assert server.regions == []
    offload.response(answer(Command.NEGOTIATE, struct.pack("<HHH", 65, 1, 0x0300).ljust(64, b"\0")))
    sent = joined(offload.request(write(DATA)))
    assert WRITE_REQUEST.unpack(sent, HEADER_SIZE).channel == Channel.RDMA_V1


def test_lost_connection(server: Server, offload: Offload) -> None:
    request = write(DATA)
    offload.request(request)
    offload.request(read(THRESHOLD, message_id=6))
    offload.close()
    assert (request.releases, server.buffers[0].releases, offload.held_bytes) == (1, 1, 0)
    assert not any(region.exposed for region, _, _ in server.regions)


def test_no_invalidation_where_the_fabric_cannot(server: Server, offload: Offload) -> None:
    server.regions_invalidatable = False
    sent = memoryview(joined(offload.request(write(DATA))))
    assert WRITE_REQUEST.unpack(sent, HEADER_SIZE).channel == Channel.RDMA_V1
