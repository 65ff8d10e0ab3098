"""MessageId window and credits (MS-SMB2 3.3.1.1, 3.3.5.2.3)."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from smb3server.state.message_window import CommandSequenceWindow


def test_first_message_id_is_zero_and_only_that() -> None:
    window = CommandSequenceWindow()
    assert not window.consume(1, 1)
    assert not window.consume(0, 2)
    assert window.consume(0, 1)
    assert not window.consume(0, 1)


def test_grant_gives_what_is_asked_up_to_the_limit() -> None:
    window = CommandSequenceWindow()
    window.consume(0, 1)
    assert window.grant(10, 16) == 10
    assert window.grant(10, 16) == 6
    assert window.grant(10, 16) == 0
    assert window.available == 16


def test_a_client_is_never_left_without_credits() -> None:
    window = CommandSequenceWindow()
    window.consume(0, 1)
    assert window.grant(0, 16) == 1


def test_gaps_do_not_grow_the_window_for_ever() -> None:
    window = CommandSequenceWindow()
    window.consume(0, 1)
    window.grant(16, 16)
    for _ in range(1000):
        # MessageId 1 is never used.
        candidates = [i for i in range(2, window.high) if i not in window.used]
        if not candidates:
            break
        assert window.consume(candidates[0], 1)
        window.grant(16, 16)
    assert window.high - window.low <= 2 * 16
    assert len(window.used) < 2 * 16


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(0, 8))))
def test_against_a_set(operations: list[tuple[int, int, int]]) -> None:
    window = CommandSequenceWindow()
    allowed = {0}
    highest = 1
    for message_id, charge, wanted in operations:
        ids = set(range(message_id, message_id + charge))
        assert window.consume(message_id, charge) == (ids <= allowed)
        if ids <= allowed:
            allowed -= ids
            granted = window.grant(wanted, 8)
            allowed |= set(range(highest, highest + granted))
            highest += granted
        assert window.available == len(allowed)


def test_grants_for_one_message() -> None:
    """Those of its requests, one after the other."""
    random = Random(1)
    for _ in range(2000):
        windows = [CommandSequenceWindow(), CommandSequenceWindow()]
        limit = random.choice((1, 3, 8, 64))
        for _ in range(random.randrange(8)):
            requested, taken = random.randrange(20), random.randrange(4)
            for window in windows:
                message_id = window.low + taken
                if window.allows(message_id, 1):
                    window.grant(requested, limit, message_id, 1)
                else:
                    window.grant(requested, limit)
        wishes = [(random.choice((0, 1, 2, 30)), random.choice((1, 1, 2))) for _ in range(3)]
        first = windows[0].low + random.choice((0, 0, 1))
        if windows[0].allows(first, sum(charge for _, charge in wishes)):
            expected, message_id = [], first
            for requested, charge in wishes:
                expected.append(windows[0].grant(requested, limit, message_id, charge))
                message_id += charge
            assert windows[1].grant_each(wishes, limit, first) == expected
            assert [(w.low, w.high, w.used, w.beyond_one) for w in windows[:1]] == [
                (w.low, w.high, w.used, w.beyond_one) for w in windows[1:]
            ]
