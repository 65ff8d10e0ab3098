"""Credits: MS-SMBD 3.1.5.1, 3.1.5.8, 3.1.5.9."""

from __future__ import annotations

from types import ModuleType

import pytest

from smbdirect.core.connection import Role
from smbdirect.core.settings import Settings
from smbdirect.errors import TimerExpired
from smbdirect.providers.base import Send
from tests.lab.cores import START, client, data, request, server, short_calls


@pytest.fixture(params=["python", "c"], name="calls")
def short_way(request: pytest.FixtureRequest) -> ModuleType:
    return short_calls(request.param)


def test_bvt_smbd_credit_mgmt_operation_with_minimum_credits() -> None:
    """A peer that asks for one credit and grants one at a time is served."""
    subject = server(grant=1, credits_requested=1)
    for index in range(50):
        assert subject.core.credits.receive_credits >= 1
        subject.receive(data(b"%d" % index, requested=1, granted=1))
        subject.core.send_message([b"answer %d" % index])
        messages = subject.pump()
        headers = subject.headers(messages)
        # 3.1.5.1: the last credit goes with a grant.
        assert any(header.credits_granted for header in headers)
        assert messages[0][24:] == b"answer %d" % index
    assert subject.core.credits.receives_posted < 20


def test_smbd_credit_mgmt_operation_with_limited_credits() -> None:
    """A message of more fragments than credits goes out as the peer grants."""
    subject = server(grant=10)
    available = subject.core.credits.send_credits
    subject.core.send_message([bytes(50_000)])
    sent = subject.pump()
    assert len(sent) == available
    while subject.core.send_queue:
        subject.receive(data(granted=10))
        more = subject.pump()
        assert 0 < len(more) <= 11
        sent += more
    assert sum(header.data_length for header in subject.headers(sent)) == 50_000


def test_smbd_credit_mgmt_consume_all_send_credits() -> None:
    """3.1.5.1: with no credits nothing is sent, and with a grant it continues."""
    subject = server(grant=10)
    subject.core.send_message([bytes(100_000)])
    subject.pump()
    assert subject.core.credits.send_credits == 0
    assert subject.pump() == []
    subject.receive(data(granted=10))
    assert len(subject.pump()) == 10


def test_last_credit_is_not_spent_without_a_grant() -> None:
    """3.1.5.1, 3.1.5.9: at one credit a new receive is posted to be granted, and without one nothing is sent."""
    subject = server(grant=10)
    subject.core.send_message([bytes(100_000)])
    subject.post_limit = 0
    sent = subject.pump()
    assert subject.core.credits.send_credits == 1
    assert subject.core.receives_wanted == 1
    subject.post_limit = 1
    (last,) = subject.pump()
    assert subject.headers([last])[0].credits_granted == 1
    assert subject.core.credits.send_credits == 0
    assert len(sent) > 0


def test_smbd_credit_mgmt_consume_all_receive_credits() -> None:
    """A peer that uses up what it holds is granted more before it runs dry."""
    subject = server(grant=10)
    held = subject.core.credits.receive_credits
    for _ in range(100):
        assert held > 0
        subject.receive(data(b"x", granted=1))
        held -= 1
        held += sum(header.credits_granted for header in subject.headers(subject.pump()))
        assert held == subject.core.credits.receive_credits


def test_peer_without_credit_is_terminated() -> None:
    subject = server(grant=10)
    subject.post_limit = 0
    for _ in range(10):
        while subject.core.credits.receive_credits:
            subject.receive(data(b"x"))
    subject.core.receives_were_posted(1)
    subject.refuses(data(b"one too many"), "3.1.5.8")


def test_smbd_credit_mgmt_consume_all_credit_server_timeout() -> None:
    """Not in spec, but in the published cases: messages wait five seconds for a peer that grants nothing."""
    subject = server(grant=10)
    subject.core.send_message([bytes(100_000)])
    subject.pump()
    assert subject.core.next_deadline() == START + 5
    subject.core.handle_timer(START + 4.9)
    with pytest.raises(TimerExpired):
        subject.core.handle_timer(START + 5)
    assert subject.core.role is Role.CLOSED


def test_waiting_for_our_own_receives_is_not_the_peers_fault() -> None:
    """One credit is left but nothing to grant with it, because the upper layer holds every buffer: no timeout."""
    subject = server(grant=10)
    subject.core.send_message([bytes(100_000)])
    subject.post_limit = 0
    subject.pump()
    assert subject.core.credits.send_credits == 1
    assert subject.core.next_deadline() == START + 120


def test_a_grant_stops_the_credit_timer() -> None:
    subject = server(grant=10)
    subject.core.send_message([bytes(12_000)])
    subject.pump()
    assert subject.core.next_deadline() == START + 5
    subject.now = START + 4
    subject.receive(data(granted=10))
    subject.pump()
    assert not subject.core.send_queue
    assert subject.core.next_deadline() == START + 124


def test_smbd_credit_mgmt_negative_parameter_credit_requested() -> None:
    server().refuses(data(b"x", requested=0), "3.1.5.8")


def test_receive_credit_target_follows_the_peer() -> None:
    """3.1.5.8: more when asked for more, up to ReceiveCreditMax; fewer are never taken back."""
    subject = server(Settings(receive_credit_max=100), credits_requested=10)
    for asked, window in ((50, 50), (100, 100), (101, 100), (0xFFFF, 100)):
        subject.receive(data(b"x", requested=asked, granted=1))
        subject.pump()
        assert subject.core.credits.receive_credit_target == asked
        assert subject.core.credits.window == window
        assert subject.core.credits.low < subject.core.credits.receives_posted <= window
    subject.receive(data(b"x", requested=5, granted=1))
    subject.pump()
    assert subject.core.credits.receive_credits <= subject.core.credits.receives_posted
    assert subject.core.receives_wanted == 0


def test_every_message_requests_the_target() -> None:
    """3.1.5.1."""
    subject = server(Settings(send_credit_target=77))
    for _ in range(3):
        subject.core.send_message([b"x"])
    assert [header.credits_requested for header in subject.headers(subject.pump())] == [77] * 3


def test_grants_ride_on_data() -> None:
    subject = server()
    for _ in range(3):
        subject.receive(data(b"x", granted=1))
    subject.core.send_message([b"answer"])
    (header,) = subject.headers(subject.pump())
    assert header.credits_granted > 0
    assert subject.core.credits.receive_credits == subject.core.credits.receives_posted


def test_receives_are_posted_again_in_batches() -> None:
    """A sixteenth of the window at a time, and one at a time in a small window. Any message grants them."""
    subject = server(Settings(receive_credit_max=160), credits_requested=160)
    subject.receive(data(b"x", requested=160, granted=1))
    subject.core.receives_were_posted(160 - subject.core.credits.receives_posted)
    subject.core.send_message([b"all of them"])
    subject.pump()
    for count in range(1, 33):
        subject.receive(data(b"x", requested=160, granted=1))
        assert subject.core.receives_wanted == (0 if count % 10 else 10)
        subject.core.send_message([b"answer"])
        (header,) = subject.headers(subject.pump())
        assert header.credits_granted == (0 if count % 10 else 10)
    small = server(Settings(receive_credit_max=31), credits_requested=31)
    small.receive(data(b"x", requested=31, granted=1))
    small.core.send_message([b"all of them"])
    small.pump()
    small.receive(data(b"x", requested=31, granted=1))
    assert small.core.receives_wanted == 1


def test_the_last_credit_is_granted_for_even_in_the_middle_of_a_batch() -> None:
    """3.1.5.9: there must be a receive to grant, so the batch does not wait to be full."""
    subject = server(Settings(receive_credit_max=160), grant=2, credits_requested=160)
    subject.core.send_message([b"first"])
    subject.pump()
    subject.receive(data(b"x", requested=160))
    subject.pump()
    while subject.core.credits.send_credits > 1:
        subject.core.send_message([b"another"])
        subject.pump()
    subject.receive(data(b"x", requested=160))
    subject.core.send_message([b"last"])
    assert subject.core.receives_wanted
    (header,) = subject.headers(subject.pump())
    assert header.credits_granted


@pytest.mark.parametrize("is_longest", [False, True])
def test_a_message_that_fits_one_send_goes_out_at_once(calls: ModuleType, is_longest: bool) -> None:
    """With the same bytes, and the same credits spent and granted, as by way of the queue."""
    subjects = [server(), server()]
    for subject in subjects:
        subject.receive(data(b"x", granted=1))
        subject.core.receives_were_posted(subject.core.receives_wanted)
    short, queued = subjects
    length = short.core.max_send_size - 24 if is_longest else 2
    entry = calls.whole(short.core, (Role.ESTABLISHED, Send), [b"a", bytes(length - 1)], None, None)
    assert entry is not None
    assert entry[1:] == (None, length)
    assert (entry[0].context, entry[0].invalidate, entry[0].signalled) == (None, None, False)
    queued.core.send_message([b"a", bytes(length - 1)])
    (send,) = queued.core.pending_sends(queued.now)
    assert b"".join(entry[0].segments) == b"".join(send.segments)
    for name in ("send_credits", "receive_credits", "receives_posted"):
        assert getattr(short.core.credits, name) == getattr(queued.core.credits, name)
    assert short.core.next_deadline() == queued.core.next_deadline()


@pytest.mark.parametrize("reason", ["empty", "long", "pieces", "credits", "queue", "keepalive", "asked", "closed"])
def test_a_message_that_has_to_wait_changes_nothing(calls: ModuleType, reason: str) -> None:
    subject = server(grant=2 if reason == "credits" else 10)
    core, segments = subject.core, [b"x"]
    if reason == "empty":
        segments = [b""]
    elif reason == "long":
        segments = [bytes(core.max_send_size - 23)]
    elif reason == "pieces":
        segments = [b"x"] * core.settings.max_send_segments
    elif reason == "credits":
        while core.credits.send_credits > 1:
            core.send_message([b"x"])
            subject.pump()
    elif reason == "queue":
        core.send_message([b"first"])
    elif reason == "keepalive":
        core.handle_timer(START + 120)
    elif reason == "asked":
        subject.receive(data(flags=1))
    else:
        core.close()
    before = core.credits.send_credits, core.credits.receive_credits, len(core.send_queue)
    assert calls.whole(core, (Role.ESTABLISHED, Send), segments, None, None) is None
    assert (core.credits.send_credits, core.credits.receive_credits, len(core.send_queue)) == before


def test_credits_are_never_granted_beyond_what_is_posted() -> None:
    subject = server()
    subject.post_limit = 3
    for _ in range(8):
        subject.receive(data(b"x", granted=1))
        subject.pump()
        assert subject.core.credits.receive_credits <= subject.core.credits.receives_posted


def test_initiator_grants_with_its_first_message() -> None:
    """3.1.5.7 initializes the receives; the peer has no credit until told."""
    subject = client(credits_granted=1)
    (header,) = subject.headers(subject.sent[1:])
    assert header.credits_granted == 10
    assert subject.core.credits.send_credits == 0


@pytest.mark.parametrize("granted", [1, 100, 0xFFFF])
def test_send_credits_add_up(granted: int) -> None:
    subject = server(grant=10)
    before = subject.core.credits.send_credits
    subject.receive(data(granted=granted))
    assert subject.core.credits.send_credits == before + granted


def test_negotiation_grants_what_is_posted() -> None:
    subject = server(Settings(receive_credit_max=16), grant=0, credits_requested=255)
    assert len(request()) == 20
    assert subject.core.credits.receive_credits == 16
    assert subject.core.credits.receives_posted == 16
