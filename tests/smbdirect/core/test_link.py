"""Two cores over a link: whatever the seed, the credits and the sizes, every message arrives once and in order."""

from __future__ import annotations

import pytest

from smbdirect.core.connection import Role
from smbdirect.core.messages import OutgoingSend
from smbdirect.core.settings import Settings
from smbdirect.errors import TimerExpired
from tests.lab.link import Link, Peer

SEEDS = range(12)


def established(link: Link, client: Settings | None = None, server: Settings | None = None) -> tuple[Peer, Peer]:
    near, far = link.connect(client, server)
    link.run((near, far), lambda: near.established and far.established)
    # Until the initiator's first message has granted credits, the acceptor has none.
    link.run((near, far), lambda: far.core.credits.send_credits > 0)
    return near, far


def traffic(link: Link, count: int, longest: int) -> list[bytes]:
    return [
        link.rng.randbytes(link.rng.choice([1, 50, 1340, 1341, link.rng.randint(1, longest)])) for _ in range(count)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_traffic_with_random_limits(seed: int) -> None:
    link = Link(seed)

    def limits() -> Settings:
        return Settings(
            receive_credit_max=link.rng.choice([1, 2, 3, 10, 255]),
            send_credit_target=link.rng.choice([1, 2, 3, 10, 255]),
            max_send_size=link.rng.choice([128, 1364, 8192]),
            max_receive_size=link.rng.choice([128, 1364, 8192]),
            max_send_segments=link.rng.choice([2, 3, 16]),
        )

    near, far = established(link, limits(), limits())
    there, back = traffic(link, 40, 20_000), traffic(link, 40, 20_000)
    for outward, inward in zip(there, back, strict=True):
        cut = link.rng.randint(0, len(outward))
        near.core.send_message([outward[:cut], b"", outward[cut:]], context=len(near.sent))
        far.core.send_message([inward])
        if link.rng.random() < 0.5:
            near.pump()
            far.pump()
    near.pump()
    far.pump()
    link.run((near, far), lambda: len(far.messages) == 40 and len(near.messages) == 40, limit=1000)
    assert far.messages == there
    assert near.messages == back
    assert near.error is None and far.error is None
    assert near.pool.lent == far.pool.lent == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("credits", [1, 2, 16])
def test_request_response_with_few_credits_never_stalls(seed: int, credits: int) -> None:
    link = Link(seed)
    few = Settings(receive_credit_max=credits, send_credit_target=credits)
    near, far = established(link, few, Settings())
    far.on_message = lambda message: far.core.send_message([message * 3]) and None
    for index in range(50):
        near.core.send_message([b"%4d" % index * 200])
        near.pump()
        link.run((near, far), lambda index=index: len(near.messages) == index + 1, limit=1)
    assert near.error is None and far.error is None


def test_idle_cores_stop_talking() -> None:
    """Granting and keeping alive must not turn into an exchange without end."""
    link = Link(1)
    near, far = established(link)
    start = link.now
    link.run((near, far), lambda: link.now > start + 90)
    assert len(near.wire) + len(far.wire) < 8


@pytest.mark.parametrize("credits", [1, 2, 255])
def test_idle_connection_is_kept_alive(credits: int) -> None:
    link = Link(2)
    few = Settings(receive_credit_max=credits, send_credit_target=credits)
    near, far = established(link, few, few)
    start = link.now
    link.run((near, far), lambda: link.now > start + 3000)
    assert near.error is None and far.error is None
    assert 20 < len(near.wire) + len(far.wire) < 200


def test_silent_peer_is_given_up_after_keepalive() -> None:
    link = Link(3)
    near, far = established(link)
    near.silent = True
    last = link.now
    link.run((near, far), lambda: far.error is not None)
    assert isinstance(far.error, TimerExpired)
    assert far.error.rule == "MS-SMBD 3.1.6.2"
    assert last + 120 <= link.now <= last + 125.1


def test_peer_without_credits_to_give_is_given_up() -> None:
    link = Link(4)
    near, far = established(link)
    near.silent = True
    far.core.send_message([bytes(1 << 20)])
    start = link.now
    far.pump()
    link.run((near, far), lambda: far.error is not None)
    assert isinstance(far.error, TimerExpired)
    assert far.error.rule == "MS-SMBD 3.1.5.1"
    assert start + 5 <= link.now <= start + 5.1
    assert len(far.core.unsent()) == 1
    assert far.core.role is Role.CLOSED


def test_acceptor_that_hears_nothing_gives_up() -> None:
    link = Link(5)
    near, far = link.connect()
    near.silent = True
    start = link.now
    link.run((far,), lambda: far.error is not None)
    assert isinstance(far.error, TimerExpired)
    assert far.error.rule == "MS-SMBD 3.1.6.1"
    assert link.now == start + 5


def test_initiator_that_hears_nothing_gives_up() -> None:
    link = Link(6)
    near, far = link.connect()
    far.silent = True
    start = link.now
    link.run((near,), lambda: near.error is not None)
    assert isinstance(near.error, TimerExpired)
    assert link.now == start + 120


def test_invalidation_token_travels_with_the_last_fragment() -> None:
    link = Link(7)
    near, far = established(link)
    near.core.send_message([bytes(5000)], invalidate=77)
    near.core.send_message([b"x"])
    near.pump()
    link.run((near, far), lambda: len(far.messages) == 2)
    assert far.invalidated == [77, None]


def test_payload_is_not_copied_on_the_way_out() -> None:
    link = Link(8)
    near, _ = established(link)
    payload = bytearray(3000)
    view = memoryview(payload)
    near.core.send_message([view[:100], view[100:]])
    near.core.receives_were_posted(near.core.receives_wanted)
    sends: list[OutgoingSend] = near.core.pending_sends(link.now)
    pieces = [piece for send in sends for piece in send.segments[1:]]
    assert sum(map(len, pieces)) == 3000
    assert all(memoryview(piece).obj is payload for piece in pieces)
