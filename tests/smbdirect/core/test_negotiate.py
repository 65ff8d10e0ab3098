"""Negotiation: MS-SMBD 3.1.4.1, 3.1.5.2, 3.1.5.3, 3.1.5.6, 3.1.5.7, 3.1.6.1, 3.1.7.2."""

from __future__ import annotations

import pytest

from smbdirect.core.connection import Keepalive, Role
from smbdirect.core.messages import (
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    Established,
    NegotiateRequest,
    NegotiateResponse,
    NegotiationFailed,
)
from smbdirect.core.settings import Settings
from smbdirect.errors import ProtocolError, SmbDirectError, TimerExpired
from tests.lab.cores import START, Subject, acceptor, client, data, initiator, request, response, server


def answer(subject: Subject) -> NegotiateResponse:
    (message,) = subject.pump()
    assert len(message) == 32
    return NEGOTIATE_RESPONSE.unpack(message)


# -- the acceptor ------------------------------------------------------------------------------------------------------


def test_bvt_smbd_negotiate_basic() -> None:
    """3.1.5.6 and 3.1.5.3: every field of the response."""
    subject = acceptor(Settings(max_receive_size=8192))
    assert subject.receive(request()) == Established()
    assert answer(subject) == NegotiateResponse(
        min_version=0x0100,
        max_version=0x0100,
        negotiated_version=0x0100,
        reserved=0,
        credits_requested=255,
        credits_granted=10,
        status=0,
        max_read_write_size=8_388_608,
        preferred_send_size=1024,
        max_receive_size=1024,
        max_fragmented_size=1_048_576 + 4096,
    )
    core = subject.core
    assert core.role is Role.ESTABLISHED
    assert core.protocol == 0x0100
    assert core.credits.receive_credits == 10
    assert core.credits.receive_credit_target == 10
    assert core.credits.send_credits == 0
    assert core.max_fragmented_send_size == 131_072
    assert core.keepalive_requested is Keepalive.NONE


def test_linux_request_is_accepted() -> None:
    """What Linux 6.12 sends; its demands on the response are met."""
    subject = acceptor()
    subject.receive(
        request(credits_requested=255, preferred_send_size=1364, max_receive_size=1364, max_fragmented_size=173_910)
    )
    reply = answer(subject)
    assert reply.negotiated_version == 0x0100
    assert 0 < reply.credits_granted <= 255
    assert reply.credits_requested > 0
    assert reply.preferred_send_size <= 1364
    assert reply.max_receive_size >= 128
    assert reply.max_fragmented_size >= 131_072


@pytest.mark.parametrize("size", [0, 1, 127, 128])
def test_smbd_negotiate_preferred_send_size_less_than_128(size: int) -> None:
    """3.1.5.6: MaxReceiveSize becomes at least 128."""
    subject = acceptor()
    subject.receive(request(preferred_send_size=size))
    assert answer(subject).max_receive_size == 128
    assert subject.core.max_receive_size == 128


@pytest.mark.parametrize(("size", "expected"), [(129, 129), (1363, 1363), (1364, 1364), (1365, 1364)])
def test_smbd_negotiate_preferred_send_size_boundaries(size: int, expected: int) -> None:
    subject = acceptor()
    subject.receive(request(preferred_send_size=size))
    assert answer(subject).max_receive_size == expected


def test_smbd_negotiate_preferred_send_size_max_value() -> None:
    subject = acceptor(Settings(max_receive_size=8192))
    subject.receive(request(preferred_send_size=0xFFFFFFFF))
    assert answer(subject).max_receive_size == 8192


@pytest.mark.parametrize("length", [0, 1, 19])
def test_smbd_negotiate_uncompleted_message(length: int) -> None:
    """3.1.5.6: shorter than 20 bytes terminates."""
    acceptor().refuses(request()[:length], "3.1.5.6")


def test_negotiate_request_may_be_longer() -> None:
    subject = acceptor()
    assert subject.receive(request() + b"?") == Established()


def test_smbd_negotiate_redundancy() -> None:
    """A second Negotiate Request is taken for a Data Transfer message, which it makes a bad one of."""
    server().refuses(request(), "3.1.5.8")
    server().refuses(request(max_receive_size=1364), "3.1.5.8")


def test_smbd_negotiate_disconnect_after_negotiate() -> None:
    subject = server()
    subject.core.close()
    subject.core.close()
    assert subject.core.role is Role.CLOSED
    assert subject.core.next_deadline() is None
    assert subject.pump() == []


@pytest.mark.parametrize(
    ("low", "high"),
    [(0x0000, 0x00FF), (0x0101, 0x0101), (0x0101, 0xFFFF), (0x0100, 0x00FF), (0, 0), (0xFFFF, 0xFFFF)],
)
def test_smbd_negotiate_version_range_not_cover_0x0100(low: int, high: int) -> None:
    """3.1.5.6, 3.1.5.3: a failure response with STATUS_NOT_SUPPORTED and nothing else but the versions."""
    subject = acceptor()
    event = subject.receive(request(min_version=low, max_version=high))
    assert isinstance(event, NegotiationFailed)
    assert event.status == 0xC00000BB
    assert answer(subject) == NegotiateResponse(0x0100, 0x0100, 0, 0, 0, 0, 0xC00000BB, 0, 0, 0, 0)
    assert subject.core.role is Role.CLOSED
    assert subject.core.next_deadline() is None


@pytest.mark.parametrize(("low", "high"), [(0x0100, 0x0100), (0x0100, 0x0101), (0x00FF, 0x0100), (0, 0xFFFF)])
def test_smbd_negotiate_version_range_cover_0x0100(low: int, high: int) -> None:
    subject = acceptor()
    assert subject.receive(request(min_version=low, max_version=high)) == Established()
    assert answer(subject).status == 0


def test_smbd_negotiate_negative_parameter_credits_requested() -> None:
    acceptor().refuses(request(credits_requested=0), "3.1.5.6")
    assert acceptor().receive(request(credits_requested=1)) == Established()


def test_smbd_negotiate_negative_parameter_max_receive_size() -> None:
    for size in (0, 127):
        acceptor().refuses(request(max_receive_size=size), "3.1.5.6")
    subject = acceptor()
    subject.receive(request(max_receive_size=128))
    assert answer(subject).preferred_send_size == 128
    assert subject.core.max_send_size == 128


def test_smbd_negotiate_negative_parameter_max_fragmented_size() -> None:
    for size in (0, 131_071):
        acceptor().refuses(request(max_fragmented_size=size), "3.1.5.6")
    assert acceptor().receive(request(max_fragmented_size=131_072)) == Established()


@pytest.mark.parametrize(
    ("size", "expected"), [(1364, 1364), (8191, 8191), (8192, 8192), (8193, 8192), (0xFFFFFFFF, 8192)]
)
def test_max_send_size_is_the_smaller(size: int, expected: int) -> None:
    """3.1.5.6: MaxSendSize, which the response's PreferredSendSize tells."""
    subject = acceptor()
    subject.receive(request(max_receive_size=size))
    assert answer(subject).preferred_send_size == expected


@pytest.mark.parametrize(("asked", "granted"), [(1, 1), (254, 254), (255, 255), (256, 255), (0xFFFF, 255)])
def test_credits_granted_up_to_receive_credit_max(asked: int, granted: int) -> None:
    """3.1.5.9 at initialization; receives are posted before they are granted."""
    subject = acceptor()
    subject.receive(request(credits_requested=asked))
    reply = answer(subject)
    assert reply.credits_granted == granted
    assert subject.core.credits.receive_credits == granted
    assert subject.core.credits.receives_posted >= granted


def test_no_receive_can_be_posted() -> None:
    """3.1.5.6: ReceiveCredits of zero makes a failure response with an error status."""
    subject = acceptor()
    subject.receive(request())
    subject.post_limit = 0
    reply = answer(subject)
    assert reply.status >> 30 == 3
    assert reply == NegotiateResponse(0x0100, 0x0100, 0, 0, 0, 0, reply.status, 0, 0, 0, 0)
    assert subject.core.role is Role.CLOSED


def test_reserved_field_is_ignored() -> None:
    assert acceptor().receive(request(reserved=0xFFFF)) == Established()


def test_smbd_negotiate_negotiation_timer() -> None:
    """3.1.7.2, 3.1.5.6: 5 seconds, cancelled by the response."""
    subject = acceptor()
    assert subject.core.next_deadline() == START + 5
    subject.core.handle_timer(START + 4.999)
    subject.now = START + 4.999
    subject.receive(request())
    answer(subject)
    assert subject.core.next_deadline() == START + 4.999 + 120
    subject.core.handle_timer(START + 5)
    assert subject.core.role is Role.ESTABLISHED


def test_smbd_negotiate_negotiation_timer_timeout() -> None:
    """3.1.6.1."""
    subject = acceptor()
    with pytest.raises(TimerExpired):
        subject.core.handle_timer(START + 5)
    assert subject.core.role is Role.CLOSED
    with pytest.raises(ProtocolError):
        subject.receive(request())


# -- the initiator -----------------------------------------------------------------------------------------------------


def test_negotiate_request_fields() -> None:
    """3.1.5.2."""
    subject = initiator(Settings(max_receive_size=8192))
    assert NEGOTIATE_REQUEST.unpack(subject.sent[0]) == NegotiateRequest(
        min_version=0x0100,
        max_version=0x0100,
        reserved=0,
        credits_requested=255,
        preferred_send_size=8192,
        max_receive_size=8192,
        max_fragmented_size=1_048_576 + 4096,
    )
    assert len(subject.sent[0]) == 20
    assert subject.core.credits.receives_posted == 1
    assert subject.core.max_read_write_size == 0


def test_negotiate_response_is_adopted() -> None:
    """3.1.5.7; the first data message then grants credits."""
    subject = initiator()
    assert subject.receive(response(credits_requested=20, credits_granted=7)) == Established()
    core = subject.core
    assert (core.role, core.protocol) == (Role.ESTABLISHED, 0x0100)
    assert (core.max_send_size, core.max_receive_size) == (1024, 1024)
    assert core.max_read_write_size == 1_048_576
    assert core.max_fragmented_send_size == 131_072
    assert core.credits.send_credits == 7
    assert core.credits.receive_credit_target == 20
    assert core.next_deadline() == START + 120
    (header,) = subject.headers(subject.pump())
    assert header.credits_granted == 20
    assert header.credits_requested == 255
    assert core.credits.send_credits == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"negotiated_version": 0x00FF},
        {"negotiated_version": 0x0101},
        {"max_receive_size": 127},
        {"max_fragmented_size": 131_071},
        {"credits_granted": 0},
        {"credits_requested": 0},
        {"preferred_send_size": 1365},
        {"status": 1},
        {"status": 0xC00000BB},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_bad_negotiate_response_terminates(changes: dict[str, int]) -> None:
    initiator().refuses(response(**changes), "3.1.5.7")


@pytest.mark.parametrize(
    "changes",
    [
        {"max_receive_size": 128},
        {"max_fragmented_size": 131_072},
        {"credits_granted": 1},
        {"credits_requested": 1},
        {"preferred_send_size": 1364},
        {"preferred_send_size": 0},
        {"min_version": 0},
        {"max_version": 0xFFFF},
        {"reserved": 0xFFFF},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_boundary_negotiate_response_is_accepted(changes: dict[str, int]) -> None:
    assert initiator().receive(response(**changes)) == Established()


@pytest.mark.parametrize("length", [0, 20, 31])
def test_short_negotiate_response_terminates(length: int) -> None:
    initiator().refuses(response()[:length], "3.1.5.7")


@pytest.mark.parametrize(("size", "expected"), [(0, 128), (127, 128), (128, 128), (129, 129), (1364, 1364)])
def test_initiator_max_receive_size(size: int, expected: int) -> None:
    assert client(preferred_send_size=size).core.max_receive_size == expected


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 0), (8_388_607, 8_388_607), (8_388_609, 8_388_608), (0xFFFFFFFF, 8_388_608)]
)
def test_initiator_max_read_write_size(size: int, expected: int) -> None:
    assert client(max_read_write_size=size).core.max_read_write_size == expected


def test_initiator_negotiation_timer() -> None:
    """3.1.4.1: 120 seconds."""
    subject = initiator()
    assert subject.core.next_deadline() == START + 120
    subject.core.handle_timer(START + 119.9)
    with pytest.raises(TimerExpired):
        subject.core.handle_timer(START + 120)


# -- order -------------------------------------------------------------------------------------------------------------


def test_no_data_before_negotiation() -> None:
    """3.1.5.4, 3.1.5.1."""
    for subject in (acceptor(), initiator()):
        with pytest.raises(SmbDirectError):
            subject.core.send_message([b"data"])
        assert not subject.core.send_queue
        assert subject.pump() == []


def test_data_instead_of_a_negotiate_request() -> None:
    """3.1.5.5: the first message is the request, whatever it holds."""
    subject = acceptor()
    event = subject.receive(data(b"hello"))
    assert isinstance(event, NegotiationFailed)


def test_messages_after_the_end_are_refused() -> None:
    subject = server()
    subject.core.close()
    with pytest.raises(ProtocolError):
        subject.receive(data(b"late"))
    with pytest.raises(SmbDirectError):
        subject.core.send_message([b"late"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"receive_credit_max": 0},
        {"receive_credit_max": 65536},
        {"send_credit_target": 0},
        {"max_send_size": 127},
        {"max_receive_size": 127},
        {"max_fragmented_receive_size": 131_071},
        {"max_read_write_size": 1 << 32},
        {"max_send_segments": 1},
    ],
    ids=str,
)
def test_settings_no_peer_could_accept(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Settings(**wrong)
