"""Oplocks and leases as a state machine: grants, breaks, acknowledgments, time-outs."""

import pytest

from smb3server.files.caching import BREAK_TIMEOUT, HANDLE, NONE, READ, WRITE, Caching, Lease
from smb3server.wire.oplock_break import OplockLevel
from tests.lab.recorder import Recorder

RH, RW, RWH = READ | HANDLE, READ | WRITE, READ | WRITE | HANDLE


@pytest.fixture
def breaks() -> Recorder:
    return Recorder()


@pytest.fixture
def caching(breaks: Recorder) -> Caching:
    return Caching(breaks)


def lease(caching: Caching, wanted: int, key: bytes = b"k", others: bool = False, version: int = 2) -> Lease:
    made = Lease(caching, b"guid", key, version)
    caching.grant_lease(made, wanted, others, False, False)
    return made


@pytest.mark.parametrize(
    ("wanted", "granted"), [(READ, READ), (RH, RH), (RW, RW), (RWH, RWH), (HANDLE, 0), (WRITE, 0), (6, 0), (0, 0)]
)
def test_first_lease_gets_what_is_valid(caching: Caching, wanted: int, granted: int) -> None:
    made = lease(caching, wanted)
    assert made.state == granted
    assert (made in caching.holders) == bool(granted)


def test_second_lease_gets_no_write_caching(caching: Caching) -> None:
    lease(caching, RH)
    assert lease(caching, RWH, b"other").state == RH


def test_upgrade_keeps_or_raises_but_never_lowers(caching: Caching) -> None:
    made = lease(caching, RH)
    caching.grant_lease(made, READ, False, False, False)
    assert made.state == RH
    caching.grant_lease(made, RW, False, False, False)
    assert made.state == RH, "RW does not contain RH"
    caching.grant_lease(made, RWH, False, False, False)
    assert made.state == RWH
    assert made.epoch == 2


def test_open_breaks_write_caching_and_waits_for_the_acknowledgment(caching: Caching, breaks: Recorder) -> None:
    made = lease(caching, RWH)
    done: list[str] = []
    assert caching.break_for_open(None, False, False, True)
    caching.wait(lambda: done.append("done"))
    assert breaks.sent == [(b"k", RWH, RH, True)]
    assert not made.acknowledge(RWH), "more than asked is refused"
    assert done == []
    assert made.acknowledge(RH)
    assert (made.state, made.breaking, done) == (RH, False, []), "nobody goes on while the acknowledger is at work"
    breaks.turn()
    assert done == ["done"]
    assert breaks.timers[0].cancelled
    assert not caching.break_for_open(None, False, False, False)
    assert len(breaks.sent) == 1


def test_client_may_give_up_more_than_asked(caching: Caching) -> None:
    made = lease(caching, RWH)
    caching.break_for_open(None, False, False, True)
    assert made.acknowledge(NONE)
    assert caching.holders == []


def test_sharing_violation_breaks_handle_caching(caching: Caching, breaks: Recorder) -> None:
    lease(caching, RWH)
    assert caching.break_for_open(None, False, True, True)
    assert breaks.sent == [(b"k", RWH, RW, True)]


def test_same_lease_key_breaks_nothing(caching: Caching, breaks: Recorder) -> None:
    made = lease(caching, RWH)
    assert not caching.break_for_open(made, True, False, True)
    assert breaks.sent == []


def test_read_lease_goes_without_acknowledgment(caching: Caching, breaks: Recorder) -> None:
    made = lease(caching, READ)
    caching.break_for_write(None)
    assert breaks.sent == [(b"k", READ, NONE, False)]
    assert (made.state, made.breaking, caching.holders) == (NONE, False, [])


def test_break_in_progress_is_deepened_step_by_step(caching: Caching, breaks: Recorder) -> None:
    made = lease(caching, RWH)
    assert caching.break_for_open(None, False, False, True)
    assert caching.break_for_open(None, True, False, True)
    assert [entry[1:3] for entry in breaks.sent] == [(RWH, RH)]
    assert made.acknowledge(RH)
    assert [entry[1:] for entry in breaks.sent[1:]] == [(RH, READ, True)]
    assert made.acknowledge(READ)
    assert [entry[1:] for entry in breaks.sent[2:]] == [(READ, NONE, False)]
    assert (made.state, made.breaking) == (NONE, False)


def test_time_out_takes_everything(caching: Caching, breaks: Recorder) -> None:
    made = lease(caching, RWH)
    caching.break_for_open(None, False, False, True)
    done: list[str] = []
    caching.wait(lambda: done.append("done"))
    assert breaks.timers[0].delay == BREAK_TIMEOUT
    breaks.timers[0].callback()
    breaks.turn()
    assert (made.state, made.breaking, done) == (NONE, False, ["done"])
    assert not made.acknowledge(RH)


def test_unreachable_client_loses_its_rights_at_once(caching: Caching, breaks: Recorder) -> None:
    breaks.reachable = False
    made = lease(caching, RWH)
    assert not caching.break_for_open(None, False, False, True)
    assert made.state == NONE


def test_close_ends_the_break(caching: Caching, breaks: Recorder) -> None:
    made = lease(caching, RWH)
    caching.break_for_open(None, False, False, True)
    done: list[str] = []
    caching.wait(lambda: done.append("done"))
    caching.drop(made)
    breaks.turn()
    assert done == ["done"]
    assert breaks.timers[0].cancelled


@pytest.mark.parametrize("level", [OplockLevel.EXCLUSIVE, OplockLevel.BATCH])
def test_exclusive_oplocks_break_to_level_two(caching: Caching, breaks: Recorder, level: int) -> None:
    owner = object()
    oplock = caching.grant_oplock(owner, level, False, False)
    assert oplock is not None
    assert oplock.level == level
    assert caching.break_for_open(None, False, False, True)
    assert breaks.sent == [(owner, 0, OplockLevel.II, False)]
    assert oplock.acknowledge(READ)
    assert oplock.level == OplockLevel.II


def test_overwrite_breaks_to_none(caching: Caching, breaks: Recorder) -> None:
    caching.grant_oplock(A := object(), OplockLevel.BATCH, False, False)
    assert caching.break_for_open(None, True, False, True)
    assert breaks.sent == [(A, 0, OplockLevel.NONE, False)]


def test_level_two_is_the_most_beside_other_opens(caching: Caching) -> None:
    oplock = caching.grant_oplock(object(), OplockLevel.BATCH, True, False)
    assert oplock is not None
    assert oplock.level == OplockLevel.II
    assert caching.grant_oplock(object(), OplockLevel.II, True, True) is None, "byte-range locks forbid read caching"


def test_no_level_two_beside_handle_caching_and_no_handle_caching_beside_level_two(caching: Caching) -> None:
    lease(caching, RH)
    assert caching.grant_oplock(object(), OplockLevel.II, True, False) is None
    other = Caching(caching.breaks)
    other.grant_oplock(object(), OplockLevel.II, True, False)
    assert lease(other, RH, others=True).state == READ
