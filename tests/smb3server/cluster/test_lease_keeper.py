"""Keeping a lease beside the event loop, on a clock that the tests move: what is renewed, until when one may answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.cluster import lease_keeper, membership
from smb3server.cluster.lease_keeper import Fence, LeaseKeeper
from smb3server.cluster.membership import Membership
from smb3server.net.store_url import parse_url
from smb3server.persistence import etcd as etcd_store
from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.etcd_access import EtcdRenewer, Members
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import LeaseLost, Put, Renewer, StoreError
from tests.lab.etcd import Etcd

TTL, MAX_STALL = 4.0, 12.0


class Simulated(Renewer):
    """A lease that obeys: the store's clock and the node's are ``now``."""

    members = 1

    def __init__(self) -> None:
        self.now = 1000.0
        self.delay = 0.0
        """Seconds that a renewal takes to reach the store, and its answer back."""
        self.failing = False
        self.expires = 0.0
        self.renewals = 0
        self.on_way_back: Callable[[], None] = lambda: None
        self.grant()

    def grant(self) -> float:
        """When it was sent."""
        sent_at = self.now
        self.now += self.delay
        self.expires = self.now + TTL
        self.now += self.delay
        return sent_at

    def renew(self, lease: int, timeout: float) -> None:
        self.now += self.delay
        if self.failing:
            raise StoreError("no")
        if self.now >= self.expires:
            raise LeaseLost("gone")
        self.expires = self.now + TTL
        self.renewals += 1
        self.now += self.delay
        self.on_way_back()

    def close(self) -> None:
        return


class Kept:
    """A keeper whose thread is the test's."""

    def __init__(self, store: Simulated) -> None:
        self.store = store
        self.fence = Fence()
        self.told: list[str] = []
        self.keeper = LeaseKeeper(
            "a",
            store,
            7,
            self.fence,
            ttl=TTL,
            max_stall=MAX_STALL,
            granted_at=store.grant(),
            on_extended=lambda: self.told.append("extended"),
            on_news=lambda: self.told.append("news"),
        )

    def run(self, seconds: float, beating: bool = True) -> None:
        """For this time, or until the deadline."""
        end = self.store.now + seconds
        pause = TTL / 4
        while self.store.now < end and self.store.now < self.fence.deadline:
            self.store.now += pause
            if beating:
                self.keeper.beat()
            pause = self.keeper.attempt()
            assert not self.fence.deadline or self.fence.deadline + self.keeper.margin <= self.store.expires


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr(lease_keeper, "boottime", lambda: found.now)
    return found


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.5, 1.0])
def test_fence_comes_before_the_lease_ends(store: Simulated, delay: float) -> None:
    """Whatever the delays: at its deadline the node's lease is still valid in the store, by the margin (``run``)."""
    store.delay = delay
    kept = Kept(store)
    kept.run(100)
    # An answer that takes two seconds comes behind the deadline.
    assert kept.fence.expired() is ("extended" not in kept.told) is (delay == 1.0)
    store.failing = True
    kept.told.clear()
    kept.run(100)
    assert kept.fence.expired() and "extended" not in kept.told


def test_deadline_counts_from_the_sending(store: Simulated) -> None:
    kept = Kept(store)
    store.now += 1.0
    sent_at = store.now
    store.delay = 0.4
    kept.keeper.attempt()
    assert kept.fence.deadline == sent_at + TTL - kept.keeper.margin
    assert kept.told == ["extended", "news"]


def test_renewed_while_the_event_loop_stands_still(store: Simulated) -> None:
    """Longer than the lease would live by itself, as long as it may."""
    kept = Kept(store)
    kept.run(MAX_STALL - 1, beating=False)
    assert store.renewals > MAX_STALL - 3 and not kept.fence.expired()
    kept.run(100)
    assert not kept.fence.expired() and store.now < kept.fence.deadline


def test_not_renewed_for_an_event_loop_that_is_dead(store: Simulated) -> None:
    kept = Kept(store)
    alive_at = store.now
    kept.run(100, beating=False)
    assert kept.fence.expired()
    assert alive_at + MAX_STALL < store.now <= alive_at + MAX_STALL + TTL
    assert store.expires <= alive_at + MAX_STALL + TTL
    # It does not come to life again behind the deadline.
    kept.keeper.beat()
    store.expires = store.now + 100
    kept.keeper.attempt()
    assert kept.fence.expired()


def test_renewed_while_requests_are_served_in_one_long_turn(store: Simulated) -> None:
    kept = Kept(store)
    end = store.now + 3 * MAX_STALL
    while store.now < end:
        assert not kept.fence.expired()
        kept.run(1, beating=False)
    served = kept.fence.asked_at
    kept.run(100, beating=False)
    assert store.expires <= served + MAX_STALL + TTL


def test_renewed_again_for_an_event_loop_that_comes_back_in_time(store: Simulated) -> None:
    kept = Kept(store)
    while kept.keeper.attempt() != kept.keeper.beat_interval:
        store.now += 1
    renewed = store.renewals
    kept.keeper.beat()
    kept.run(100)
    assert store.renewals > renewed + 90 and not kept.fence.expired()


def test_late_answer_opens_no_fence(store: Simulated) -> None:
    """The membership ends while a renewal is under way, and the next one has begun before its answer comes."""
    kept = Kept(store)
    store.on_way_back = kept.keeper.end
    kept.keeper.attempt()
    assert kept.fence.deadline == 0.0 and kept.told == []

    def joined_anew() -> None:
        kept.keeper.end()
        kept.fence.deadline = store.now + 2

    kept = Kept(store)
    store.on_way_back = joined_anew
    kept.keeper.attempt()
    kept.keeper.end()
    assert kept.fence.deadline == store.now + 2


def test_answer_behind_the_deadline_opens_no_fence(store: Simulated) -> None:
    """Stopped (SIGSTOP) between sending and the answer."""
    kept = Kept(store)

    def stopped() -> None:
        store.now = kept.fence.deadline

    store.on_way_back = stopped
    store.now += 1
    kept.keeper.attempt()
    assert kept.fence.expired() and kept.fence.deadline == 0.0


def test_lost_lease_closes_the_fence_at_once(store: Simulated) -> None:
    kept = Kept(store)
    store.expires = store.now
    kept.keeper.attempt()
    assert kept.fence.deadline == 0.0


class Counting(Renewer):
    """Real time, no store: tells when it has been asked so often."""

    members = 1

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.enough = threading.Event()
        self.closed = threading.Event()
        self.bad = False

    def renew(self, lease: int, timeout: float) -> None:
        if self.bad:
            raise RuntimeError("a bug")
        self.left -= 1
        if self.left <= 0:
            self.enough.set()

    def close(self) -> None:
        self.closed.set()


def _keeper(renewer: Renewer, fence: Fence, ttl: float, on_news: Callable[[], None] = lambda: None) -> LeaseKeeper:
    return LeaseKeeper(
        "a", renewer, 1, fence, ttl=ttl, max_stall=600, granted_at=lease_keeper.boottime() + 600,
        on_extended=lambda: None, on_news=on_news,
    )  # fmt: skip


def test_an_event_loop_that_never_waits_leaves_the_interpreter_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pure Python, not one system call: the switch interval is all that lets another thread run."""
    monkeypatch.setattr(lease_keeper, "_RENEWALS_PER_TTL", 6000)
    renewer, fence = Counting(20), Fence()
    keeper = _keeper(renewer, fence, 60)
    keeper.start()

    async def busy() -> None:
        is_enough = renewer.enough.is_set
        while not is_enough():
            for _ in range(1000):
                pass

    asyncio.run(busy())
    keeper.end()
    keeper.join()
    assert renewer.closed.is_set()


def test_a_thread_that_fails_leaves_no_fence_open() -> None:
    renewer, fence = Counting(1), Fence()
    renewer.bad = True
    told = threading.Event()
    keeper = _keeper(renewer, fence, 2, told.set)
    keeper.start()
    keeper.join()
    assert fence.expired() and told.is_set() and renewer.closed.is_set()


def test_watches_leave_a_member_that_renewals_find_silent(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and never answers, and nothing else is asked of."""
    monkeypatch.setattr(etcd_store, "WATCH_SILENCE", 600.0)

    async def body() -> None:
        asked = asyncio.Event()

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            asked.set()
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(never, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        other = EtcdStore(parse_url(etcd.url))
        lease, version = await other.grant(60), await other.version()
        store = EtcdStore([f"http://{host}:{port}", *parse_url(etcd.url)])
        watching = store.watch("t/news/", version)
        news = asyncio.ensure_future(anext(watching))
        await asked.wait()
        renewer = store.renewer()
        with pytest.raises(StoreError):
            await asyncio.to_thread(renewer.renew, lease, 0.1)
        await other.commit([Put("t/news/1", b"")])
        assert (await news).key == "t/news/1"
        await watching.aclose()  # type: ignore[attr-defined]
        renewer.close()
        await store.close()
        await other.close()
        listener.close()

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.fixture(params=["sqlite", "etcd"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "etcd":
        request.getfixturevalue("etcd")
    yield request.param


def test_membership_outlives_a_blocked_event_loop(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The keys that are bound to the lease are there after more than a ttl without one turn of the event loop."""

    async def body() -> None:
        if kind == "sqlite":
            store: SqliteStore | EtcdStore = await SqliteStore.open(tmp_path / "state.db")
        else:
            store = EtcdStore(parse_url(request.getfixturevalue("etcd").url))
        joined, renewed, lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        member = Membership(store, "t/", "a", dict, 3, 600)
        extended: list[float] = []
        member.on_joined, member.on_renewed, member.on_lost = joined.set, renewed.set, lost.set
        member.on_extended = lambda: extended.append(member.fence.deadline)
        running = asyncio.ensure_future(member.run())
        await joined.wait()
        lease = member.lease
        # Not a single turn: the thread alone gets the deadline beyond what was granted, and then as far again.
        bound = lease_keeper.boottime() + 2 * member.ttl
        while not extended or extended[-1] < bound:
            time.sleep(0.01)
            assert not member.fence.expired()
        await renewed.wait()
        assert member.lease == lease and not lost.is_set()
        assert await store.time_left(lease) > 0 and await store.get(member.key) is not None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await member.leave()
        assert member.fence.expired() and await store.get(member.key) is None
        await store.close()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_store_that_is_away_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(SqliteStore):
        asked = 0

        async def grant(self, ttl: float) -> int:
            self.asked += 1
            raise StoreError("no member answers" if self.asked < 4 else "no leader")

    async def body() -> None:
        store = Away.__new__(Away)
        running = asyncio.ensure_future(Membership(store, "t/", "a", dict).run())
        while store.asked < 6:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    monkeypatch.setattr(membership, "_JOIN_DELAY", 0.0)
    asyncio.run(asyncio.wait_for(body(), 60))
    reasons = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert reasons == ["no member answers", "no leader"]


def test_next_member_is_asked(etcd: Etcd) -> None:
    """One that refuses costs an attempt; then there is one connection, which is kept."""

    async def granted() -> int:
        store = EtcdStore(parse_url(etcd.url))
        lease = await store.grant(60)
        await store.close()
        return lease

    lease = asyncio.run(granted())
    members = Members(["http://127.0.0.1:1", *parse_url(etcd.url)])
    silent: list[str] = []
    renewer = EtcdRenewer(members, silent.append)
    assert renewer.members == 2
    with pytest.raises(StoreError):
        renewer.renew(lease, 2.0)
    assert silent == ["http://127.0.0.1:1"] and members.first == parse_url(etcd.url)[0]
    renewer.renew(lease, 10.0)
    connection = renewer._connection
    assert connection is not None
    sock = connection.sock
    renewer.renew(lease, 10.0)
    assert renewer._connection is connection and connection.sock is sock
    with pytest.raises(LeaseLost):
        renewer.renew(lease + 1, 10.0)
    renewer.close()
    renewer.renew(lease, 10.0)
    # Somebody else has found this member silent.
    members.avoid(members.first)
    with pytest.raises(StoreError):
        renewer.renew(lease, 2.0)
    renewer.close()
