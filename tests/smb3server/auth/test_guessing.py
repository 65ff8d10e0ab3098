"""Guessing of passwords is slowed per account and per address, whatever the connection and the service."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from smb3server.auth import guessing
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.guessing import FIRST_DELAY, HALF_LIFE, MAX_ENTRIES, MAX_STEPS, Guesses, LogonDelayed, LogonRefused
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.settings.server import Settings
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.wire_client import Harness, drive
from tools.failover import logon

LONGEST_TURN = 0.1

HERE, THERE = "192.0.2.1", "198.51.100.1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(**options: Any) -> tuple[Guesses, Clock]:
    clock = Clock()
    return Guesses(clock=clock, **options), clock


def guess(guesses: Guesses, clock: Clock, account: str, address: str) -> bool:
    """One wrong password by somebody who waits for his turn; False if he was refused."""
    try:
        clock.now += guesses.begin(account, address)
    except LogonRefused:
        return False
    return True


def delay(guesses: Guesses, account: str, address: str) -> float:
    """How long a logon has to wait that proves nothing wrong."""
    wait = guesses.begin(account, address)
    guesses.withdraw(account, address)
    return wait


def succeed(guesses: Guesses, clock: Clock, account: str, address: str) -> None:
    clock.now += guesses.begin(account, address)
    guesses.proved(account, address)


def test_the_delay_grows_with_failures_and_has_an_end() -> None:
    guesses, clock = make(per_account=3, per_address=1000, max_delay=4.0)
    waits = []
    for _ in range(12):
        begun = clock.now
        assert guess(guesses, clock, "alice", HERE)
        waits.append(clock.now - begun)
    # The first three cost nothing, and the fourth begins the first interval.
    assert waits[:4] == [0.0] * 4
    assert waits[4] == pytest.approx(FIRST_DELAY)
    assert sorted(waits) == waits
    assert waits[-1] == pytest.approx(4.0)


def test_failures_are_forgotten() -> None:
    guesses, clock = make(per_account=3, max_delay=4.0)
    for _ in range(50):
        guess(guesses, clock, "alice", HERE)
    clock.now += HALF_LIFE * 2
    assert delay(guesses, "alice", THERE) == 0.0


@pytest.mark.parametrize("connections", [1, 64, 4096])
def test_many_connections_guess_no_faster_than_one(connections: int) -> None:
    """All ask at once; those whose turn does not come in time are refused unseen."""
    guesses, clock = make(per_account=10, per_address=30, max_delay=5.0)
    seen = 0
    end = clock.now + 600
    while clock.now < end:
        turns = [1.0]
        for _ in range(connections):
            try:
                wait = guesses.begin("alice", HERE)
            except LogonRefused:
                break
            seen += 1
            turns.append(wait)
        clock.now += max(turns)
    # The free ones, one in five seconds, and some more while the delay grows.
    assert 600 / 5 < seen < 10 + 600 / 5 + 4 * MAX_STEPS


def test_an_account_is_guessed_no_faster_from_many_addresses() -> None:
    guesses, clock = make(per_account=10, per_address=30, max_delay=5.0)
    seen = sum(guess(guesses, clock, "alice", f"10.0.{number >> 8}.{number & 255}") for number in range(200))
    assert seen == 200
    assert clock.now - 1000.0 > 180 * 4


def test_an_address_guesses_no_faster_at_many_accounts() -> None:
    guesses, clock = make(per_account=10, per_address=30, max_delay=5.0)
    for number in range(200):
        assert guess(guesses, clock, f"user{number}", HERE)
    assert clock.now - 1000.0 > 160 * 4
    # An IPv6 /64 is one source.
    again, clock = make(per_account=10, per_address=30, max_delay=5.0)
    for number in range(200):
        assert guess(again, clock, f"user{number}", f"2001:db8::{number:x}")
    assert clock.now - 1000.0 > 160 * 4


def test_others_are_not_slowed() -> None:
    guesses, clock = make()
    succeed(guesses, clock, "alice", THERE)
    for _ in range(100):
        guess(guesses, clock, "alice", HERE)
    assert delay(guesses, "bob", THERE) == 0.0
    # Nor the account itself, from where its user has logged on before.
    assert delay(guesses, "alice", THERE) == 0.0
    # Nor who logged on from the attacker's address: many may share it.
    succeed(guesses, clock, "carol", HERE)
    assert delay(guesses, "carol", HERE) == 0.0
    # Until somebody guesses at that account from there.
    for _ in range(10):
        guesses.begin("carol", HERE)
    with pytest.raises(LogonRefused):
        for _ in range(100):
            assert delay(guesses, "carol", HERE) >= 0.0


def test_a_success_does_not_clear_the_address() -> None:
    guesses, clock = make(per_account=1000, per_address=5, max_delay=4.0)
    for number in range(40):
        guess(guesses, clock, f"user{number}", HERE)
        succeed(guesses, clock, "mallory", HERE)
    assert clock.now - 1000.0 > 25 * 4


def test_successes_cost_nothing() -> None:
    guesses, clock = make()
    for number in range(20_000):
        assert delay(guesses, f"user{number % 50}", HERE) == 0.0
        succeed(guesses, clock, f"user{number % 50}", HERE)
    assert len(guesses) == 50


def test_memory_is_bounded() -> None:
    guesses, clock = make(max_delay=0.0)
    for number in range(3 * MAX_ENTRIES):
        guesses.begin(f"user{number}" * 100, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        succeed(guesses, clock, f"user{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        clock.now += 0.001
    assert len(guesses) <= 3 * MAX_ENTRIES
    assert all(len(key) <= guessing.NAME_LENGTH * 3 for key in guesses._accounts)


def test_lock_out_is_the_administrators_choice() -> None:
    guesses, clock = make(max_delay=0.0)
    for _ in range(1000):
        guesses.begin("alice", HERE)
    assert delay(guesses, "alice", HERE) == 0.0
    guesses, clock = make(max_delay=0.0, lockout_failures=3, lockout_time=60.0)
    for name in ("alice", "nobody"):
        guesses.begin(name, HERE)
        guesses.begin(name, HERE)
        succeed(guesses, clock, name, HERE)
        guesses.begin(name, HERE)
        guesses.begin(name, THERE)
        assert delay(guesses, name, HERE) == 0.0
        guesses.begin(name, HERE)
        with pytest.raises(LogonRefused) as caught:
            delay(guesses, name, THERE)
        assert caught.value.locked
    clock.now += 60.1
    assert delay(guesses, "alice", HERE) == 0.0


def acceptor(guesses: Guesses, address: str = HERE) -> Acceptor:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    return Acceptor(users, "SERVER", guesses=guesses, address=address)


def test_a_right_password_waits_its_turn_too() -> None:
    """Else the answer that comes early would be the right one. Asked before its time the token is not looked at."""
    guesses, clock = make(per_account=2, max_delay=4.0)
    for _ in range(4):
        guess(guesses, clock, "u", HERE)
    made = acceptor(guesses)
    token, _ = logon.Account("u", "pw").answer(made.step(logon.FIRST_TOKEN))
    for _ in range(3):
        with pytest.raises(LogonDelayed) as caught:
            made.step(token)
        assert made.identity is None
    clock.now += caught.value.seconds
    made.step(token)
    assert made.identity is not None


def test_locked_out_accounts_and_names_that_are_none_get_one_status() -> None:
    guesses, _ = make(lockout_failures=2, max_delay=0.0)
    for user in ("u", "nobody"):
        statuses = []
        for _ in range(3):
            made = acceptor(guesses)
            token, _key = logon.Account(user, "wrong").answer(made.step(logon.FIRST_TOKEN))
            with pytest.raises(StatusError) as caught:
                made.step(token)
            statuses.append(caught.value.status)
        assert statuses == [NtStatus.LOGON_FAILURE] * 2 + [NtStatus.ACCOUNT_LOCKED_OUT]


def test_sessions_are_slowed_over_connections(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def test(harness: Harness) -> None:
        clock = Clock()
        guesses = harness.server.guesses = Guesses(per_account=3, per_address=1000, max_delay=0.4, clock=clock)

        async def attempt(password: str, user: str = "u") -> int:
            client = await harness.connect()
            await client.negotiate()
            status = (await client.session_setup(user, password)).status
            client.writer.close()
            return status

        # The server's timers run on the loop's time, the guesses on the clock of this test.
        clock_runs = asyncio.ensure_future(_run(clock))
        outcomes = await asyncio.gather(*(attempt("wrong") for _ in range(12)))
        assert outcomes == [NtStatus.LOGON_FAILURE] * 12
        # Most were refused unseen, being too many at once.
        assert guesses._accounts["u"].in_a_row < 9
        clock.now += 10
        assert await attempt("pw", "other") == 0
        assert await attempt("pw") == 0
        clock_runs.cancel()

    drive(test, Settings())
    told = [record.getMessage() for record in caplog.records if "logon refused" in record.getMessage()]
    assert len(told) == 12
    assert all("127.0.0.1" in line and "user u from" in line for line in told)


async def _run(clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        await asyncio.sleep(0.001)
        clock.now += loop.time() - last
        last = loop.time()


def test_who_leaves_while_it_waits_leaves_nothing() -> None:
    async def test(harness: Harness) -> None:
        guesses = harness.server.guesses = Guesses(per_account=1, per_address=1000, max_delay=30.0)
        for _ in range(8):
            guesses.begin("u", HERE)
        client = await harness.connect()
        await client.negotiate()
        waiting = asyncio.ensure_future(client.session_setup("u", "pw"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        client.writer.close()
        await harness.settled()
        assert not harness.server.sessions.by_id
        waiting.cancel()

    drive(test)


def test_guesses_that_begin_together_are_counted_before_one_ends() -> None:
    guesses = Guesses(per_account=3, per_address=100, clock=lambda: 0.0)
    assert [guesses.begin("u", "192.0.2.1") for _ in range(3)] == [0.0, 0.0, 0.0]
    waits = [guesses.begin("u", "192.0.2.1") for _ in range(3)]
    assert waits[0] == 0.0
    assert 0.0 < waits[1] < waits[2]


def test_a_guess_that_was_right_or_not_verified_counts_no_longer() -> None:
    guesses = Guesses(per_account=2, per_address=100, lockout_failures=2, clock=lambda: 0.0)
    for _ in range(5):
        assert guesses.begin("u", "192.0.2.1", 2) == 0.0
        guesses.withdraw("u", "192.0.2.1", 2)
    for _ in range(5):
        assert guesses.begin("u", "192.0.2.1") == 0.0
        guesses.proved("u", "192.0.2.1")
    # The same counts do lock the account when they are failures.
    guesses.begin("u", "192.0.2.1")
    guesses.begin("u", "192.0.2.1")
    with pytest.raises(LogonRefused):
        guesses.begin("u", "192.0.2.1")


def test_a_dear_guess_counts_as_several() -> None:
    guesses = Guesses(per_account=10, per_address=100, clock=lambda: 0.0)
    assert guesses.begin("u", "192.0.2.1", 11) == 0.0
    guesses.begin("u", "192.0.2.1")
    assert guesses.begin("u", "192.0.2.1") > 0.0


def test_a_right_password_of_a_restricted_account_forgives_nothing() -> None:
    """It is no failure, and no success: those before it still count for the lock-out."""
    guesses = Guesses(max_delay=0.0, lockout_failures=3)
    guesses.begin("u", HERE)
    guesses.begin("u", HERE)
    for _ in range(5):
        guesses.begin("u", HERE)
        guesses.withdraw("u", HERE)
    guesses.begin("u", HERE)
    with pytest.raises(LogonRefused):
        guesses.begin("u", HERE)
