"""Faults of MS-SMBD."""

from __future__ import annotations

import struct

from smb3server.lab.pcap.rdma import Kind
from tests.lab.hostile_captures.over_iwarp import DOWN, UP, IwarpSession, Step, empty
from tests.lab.hostile_captures.table import over_iwarp

CREDITS_REQUESTED_AT, CREDITS_GRANTED_AT, FLAGS_AT, RESERVED_AT = 0, 2, 4, 6
REMAINING_AT, OFFSET_AT, LENGTH_AT, PADDING_AT = 8, 12, 16, 20
"""Places in a data transfer message. [MS-SMBD 2.2.3]"""


def _last(session: IwarpSession, step: Step) -> Step:
    session.end_after(step)
    return step


@over_iwarp("smbd.negotiate-request", "client")
def small_receive_size(session: IwarpSession) -> None:
    _last(session, session.send(UP)).put("<I", 12, 127)


@over_iwarp("smbd.negotiate-response", "server")
def no_credits_granted(session: IwarpSession) -> None:
    _last(session, session.send(DOWN)).put("<H", 10, 0)


@over_iwarp("smbd.order", "client")
def data_before_the_response(session: IwarpSession) -> None:
    request = _last(session, session.send(UP))
    session.end_with(empty(UP, request.time))


@over_iwarp("smbd.length", "server")
def short_message(session: IwarpSession) -> None:
    del _last(session, session.send(DOWN, 4)).payload[12:]


@over_iwarp("smbd.offset", "client")
def data_at_20(session: IwarpSession) -> None:
    step = _last(session, session.send(UP, 4))
    step.put("<I", OFFSET_AT, 20)


@over_iwarp("smbd.bounds", "client")
def data_behind_the_end(session: IwarpSession) -> None:
    step = _last(session, session.send(UP, 4))
    step.put("<I", LENGTH_AT, len(step.payload))


@over_iwarp("smbd.size", "server")
def longer_than_the_receive_buffer(session: IwarpSession) -> None:
    step = _last(session, session.send(DOWN, 4))
    step.payload += bytes(1365 - len(step.payload))


@over_iwarp("smbd.credits-requested", "client")
def no_credits_requested(session: IwarpSession) -> None:
    session.send(UP, 4).put("<H", CREDITS_REQUESTED_AT, 0)


def _spend(session: IwarpSession, count: int) -> None:
    """Keep the negotiation alone, and let the client send ``count`` messages, each of which grants a credit."""
    response = _last(session, session.send(DOWN))
    session.end_with(*(empty(UP, response.time) for _ in range(count)))


@over_iwarp("smbd.credits-overdrawn", "client")
def one_message_too_many(session: IwarpSession) -> None:
    (granted,) = struct.unpack_from("<H", session.send(DOWN).payload, 10)
    _spend(session, granted + 1)


@over_iwarp("smbd.last-credit", "client")
def last_credit_grants_none(session: IwarpSession) -> None:
    (granted,) = struct.unpack_from("<H", session.send(DOWN).payload, 10)
    _spend(session, granted - 1)
    session.end_with(empty(UP, session.steps[-1].time, granted=0))


@over_iwarp("smbd.empty", "server")
def nothing_but_a_promise(session: IwarpSession) -> None:
    step = _last(session, session.send(UP, 4))
    session.end_with(empty(DOWN, step.time, remaining=8))


@over_iwarp("smbd.remaining", "client")
def fragments_do_not_add_up(session: IwarpSession) -> None:
    sends = [s for s in session.steps if s.direction is UP and s.kind is Kind.SEND][1:]
    first = next(at for at, step in enumerate(sends) if step.get("<I", REMAINING_AT))
    second = _last(session, sends[first + 1])
    second.put("<I", REMAINING_AT, second.get("<I", REMAINING_AT) + 8)


@over_iwarp("smbd.fragmented-size", "client")
def endless_message(session: IwarpSession) -> None:
    _last(session, session.send(UP, 4)).put("<I", REMAINING_AT, 1 << 24)


@over_iwarp("smbd.flags", "server")
def unknown_flag(session: IwarpSession) -> None:
    session.send(DOWN, 4).put("<H", FLAGS_AT, 2)


@over_iwarp("smbd.credits-granted", "server")
def generous_grant(session: IwarpSession) -> None:
    _last(session, session.send(DOWN, 4)).put("<H", CREDITS_GRANTED_AT, 60000)


@over_iwarp("smbd.reserved", "client")
def reserved_bytes_in_use(session: IwarpSession) -> None:
    session.send(UP, 4).put("<H", RESERVED_AT, 1)


@over_iwarp("smbd.padding", "server")
def padding_with_something_in_it(session: IwarpSession) -> None:
    session.send(DOWN, 4).put("<I", PADDING_AT, 1)


@over_iwarp("smbd.keepalive", "server")
def no_prompt_answer(session: IwarpSession) -> None:
    step = session.send(UP, 4)
    step.put("<H", FLAGS_AT, 1)
    for later in session.steps[session.place(step) + 1 :]:
        later.time += 6.0
