"""Faults of MPA, DDP and RDMAP, and of RDMA on any fabric."""

from __future__ import annotations

import struct

from smb3server.lab.pcap.rdma import Kind
from smb3server.lab.pcap.smb2 import READ, WRITE
from tests.lab.hostile_captures.over_iwarp import DOWN, UP, IwarpSession, Step
from tests.lab.hostile_captures.table import RDMA_ENCRYPTED, RDMA_SIGNED, over_iwarp

SMB2 = 24
"""Where the SMB2 message begins in a Send."""
CHANNEL_AT = {READ: SMB2 + 64 + 36, WRITE: SMB2 + 64 + 32}
RDMA_V1 = 1

# -- MPA, DDP, RDMAP ------------------------------------------------------------------------------------------------


@over_iwarp("mpa.set-up", "server")
def reply_with_another_key(session: IwarpSession) -> None:
    session.set_up[1][8:11] = b"Req"


@over_iwarp("mpa.enhanced", "server")
def reply_without_ird_and_ord(session: IwarpSession) -> None:
    session.set_up[1][18:] = b"\0\0"


@over_iwarp("mpa.first-fpdu", "server")
def server_sends_first(session: IwarpSession) -> None:
    session.steps = [Step(DOWN, session.steps[0].time, Kind.TERMINATE, bytearray(4))]


@over_iwarp("mpa.crc", "client")
def one_wrong_crc(session: IwarpSession) -> None:
    session.send(UP, 5).crc = 1


def _last(session: IwarpSession, step: Step) -> Step:
    session.end_after(step)
    return step


@over_iwarp("ddp.header", "client")
def another_version(session: IwarpSession) -> None:
    def tweak(ulpdu: bytearray) -> None:
        ulpdu[2] ^= 3

    _last(session, session.send(UP, 5)).tweak = tweak


@over_iwarp("ddp.queue", "client")
def send_on_the_queue_of_reads(session: IwarpSession) -> None:
    def tweak(ulpdu: bytearray) -> None:
        ulpdu[11] = 1

    _last(session, session.send(UP, 5)).tweak = tweak


@over_iwarp("ddp.msn", "server")
def skipped_number(session: IwarpSession) -> None:
    def tweak(ulpdu: bytearray) -> None:
        ulpdu[15] += 1

    _last(session, session.send(DOWN, 5)).tweak = tweak


@over_iwarp("ddp.offset", "server")
def message_begins_at_4(session: IwarpSession) -> None:
    def tweak(ulpdu: bytearray) -> None:
        ulpdu[19] = 4

    _last(session, session.send(DOWN, 5)).tweak = tweak


@over_iwarp("rdmap.invalidate-stag", "client")
def stag_in_a_plain_send(session: IwarpSession) -> None:
    def tweak(ulpdu: bytearray) -> None:
        ulpdu[7] = 1

    _last(session, session.send(UP, 5)).tweak = tweak


@over_iwarp("rdmap.read-request", "server")
def short_read_request(session: IwarpSession) -> None:
    del _last(session, session.first(Kind.READ_REQUEST)).payload[24:]


# -- RDMA -----------------------------------------------------------------------------------------------------------


@over_iwarp("rdma.reads", "server")
def too_many_reads(session: IwarpSession) -> None:
    read = _last(session, session.first(Kind.READ_REQUEST))
    (ird,) = struct.unpack_from("!H", session.set_up[0], 20)
    session.end_with(*(read.copy() for _ in range(ird & 0x3FFF)))


@over_iwarp("rdma.read-response", "client")
def short_response(session: IwarpSession) -> None:
    del _last(session, session.first(Kind.READ_RESPONSE)).payload[-8:]


@over_iwarp("rdma.direction", "client")
def client_writes(session: IwarpSession) -> None:
    write = _last(session, session.first(Kind.WRITE)).copy()
    write.direction = UP
    session.end_with(write)


@over_iwarp("rdma.token", "server")
def unknown_token(session: IwarpSession) -> None:
    _last(session, session.first(Kind.WRITE)).token ^= 0x55


@over_iwarp("rdma.invalidated", "server")
def write_after_the_invalidation(session: IwarpSession) -> None:
    write = session.first(Kind.WRITE).copy()
    session.end_after(session.response_to(session.request(READ, by_rdma=True)))
    session.end_with(write)


@over_iwarp("rdma.late", "server")
def write_after_the_response(session: IwarpSession) -> None:
    request, write = session.request(READ, by_rdma=True), session.first(Kind.WRITE).copy()
    request.put("<I", CHANNEL_AT[READ], RDMA_V1)
    response = _last(session, session.response_to(request))
    response.invalidated = None
    session.end_with(write)


@over_iwarp("rdma.range", "server")
def write_behind_the_end(session: IwarpSession) -> None:
    _last(session, session.first(Kind.WRITE)).address += 8


@over_iwarp("rdma.right", "server")
def read_from_memory_to_write(session: IwarpSession) -> None:
    write = session.first(Kind.WRITE)
    session.end_after(write)
    payload = struct.pack("!IQIIQ", 0x77, 0, len(write.payload), write.token, write.address)
    read = Step(DOWN, write.time, Kind.READ_REQUEST, bytearray(payload), write.token, write.address)
    session.end_with(read)


@over_iwarp("rdma.bytes", "server")
def response_without_its_write(session: IwarpSession) -> None:
    response = session.response_to(session.request(READ, by_rdma=True))
    session.end_after(response)
    session.steps.remove(session.first(Kind.WRITE))


@over_iwarp("rdma.invalidation-missing", "server")
def response_without_invalidation(session: IwarpSession) -> None:
    session.response_to(session.request(WRITE, by_rdma=True)).invalidated = None


@over_iwarp("rdma.invalidation-unasked", "server")
def invalidation_for_rdma_v1(session: IwarpSession) -> None:
    session.request(WRITE, by_rdma=True).put("<I", CHANNEL_AT[WRITE], RDMA_V1)


@over_iwarp("rdma.descriptor", "client")
def descriptor_behind_the_message(session: IwarpSession) -> None:
    request = _last(session, session.request(READ, by_rdma=True))
    request.put("<H", CHANNEL_AT[READ] + 8, 4000)


# -- RDMA transforms ------------------------------------------------------------------------------------------------


@over_iwarp("rdma.transform-chain", "client", RDMA_SIGNED)
def two_transforms_announced(session: IwarpSession) -> None:
    request = _last(session, session.request(WRITE, by_rdma=True))
    chain = SMB2 + request.get("<H", CHANNEL_AT[WRITE] + 8)
    request.put("<H", chain + 8, 2)


@over_iwarp("rdma.transform-missing", "server", RDMA_SIGNED)
def read_without_its_signature(session: IwarpSession) -> None:
    response = _last(session, session.response_to(session.request(READ, by_rdma=True)))
    response.put("<I", SMB2 + 64 + 12, 0)


@over_iwarp("rdma.transform", "server", RDMA_ENCRYPTED, password=True)
def changed_data(session: IwarpSession) -> None:
    session.first(Kind.WRITE).payload[100] ^= 1
