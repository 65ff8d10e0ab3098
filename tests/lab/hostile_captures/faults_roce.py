"""Faults of the InfiniBand transport."""

from __future__ import annotations

import struct

from tests.lab.hostile_captures.over_roce import (
    ACK,
    CLIENT,
    SEND_ONLY,
    SERVER,
    WRITE_FIRST,
    WRITE_MIDDLE,
    RoceSession,
    psn_of,
    with_psn,
)
from tests.lab.hostile_captures.table import over_roce

_BTH, _RETH_LENGTH_AT = 12, 24
_NAK_SEQUENCE = 0x60


@over_roce("ib.packet", "client")
def send_without_its_headers(session: RoceSession) -> None:
    at = session.find(ACK, CLIENT, 5)
    session.change(at, session.body(at)[:_BTH])
    session.end_after(at)


@over_roce("ib.icrc", "client")
def wrong_icrc(session: RoceSession) -> None:
    at = session.find(SEND_ONLY, CLIENT, 5)
    session.change(at, session.body(at), right=False)
    session.end_after(at)


@over_roce("ib.opcode", "server")
def middle_without_a_first(session: RoceSession) -> None:
    at = session.find(SEND_ONLY, SERVER, 5)
    body = session.body(at)
    session.change(at, bytes((WRITE_MIDDLE,)) + body[1:])
    session.end_after(at)


@over_roce("ib.size", "server")
def short_middle(session: RoceSession) -> None:
    at = session.find(WRITE_MIDDLE, SERVER, 2)
    session.change(at, session.body(at)[:-16])
    session.end_after(at)


@over_roce("ib.write-length", "server")
def longer_than_announced(session: RoceSession) -> None:
    at = session.find(WRITE_FIRST, SERVER)
    body = bytearray(session.body(at))
    (length,) = struct.unpack_from("!I", body, _RETH_LENGTH_AT)
    struct.pack_into("!I", body, _RETH_LENGTH_AT, length - 8)
    session.change(at, bytes(body))
    session.end_after(session.find(0x08, SERVER))  # RDMA WRITE Last


@over_roce("ib.psn", "client")
def skipped_psn(session: RoceSession) -> None:
    """The receiver says that a packet is missing, and the sender never sends it."""
    at = session.find(SEND_ONLY, CLIENT, 5)
    body = session.body(at)
    session.change(at, with_psn(body, psn_of(body) + 1))
    nak = session.find(ACK, SERVER, 5)
    answer = session.body(nak)
    session.change(nak, with_psn(answer[:_BTH] + bytes((_NAK_SEQUENCE,)) + answer[_BTH + 1 :], psn_of(body)))
    session.frames = [*session.frames[: at + 1], session.frames[nak]._replace(number=session.frames[at].number + 1)]


@over_roce("ib.ack", "server")
def acknowledged_before_it_was_sent(session: RoceSession) -> None:
    at = session.find(SEND_ONLY, CLIENT, 5)
    before = session.find(ACK, SERVER, 0)
    psn = psn_of(session.body(at))
    session.change(before, with_psn(session.body(before), psn))
    acknowledgement = session.frames.pop(before)
    session.frames.insert(session.find(SEND_ONLY, CLIENT, 5), acknowledgement)
    session.end_after(session.find(SEND_ONLY, CLIENT, 5))
