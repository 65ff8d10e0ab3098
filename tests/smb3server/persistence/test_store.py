"""What every store must do, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import (
    ABSENT,
    MAX_BATCH,
    Change,
    Condition,
    ConditionFailed,
    Delete,
    DeletePrefix,
    LeaseLost,
    Put,
    Store,
    StoreError,
)

Test = Callable[[Store], Awaitable[None]]
Run = Callable[[Test], None]


@pytest.fixture(params=["sqlite", "etcd"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    async def opened() -> Store:
        if request.param == "sqlite":
            return await SqliteStore.open(tmp_path / "state.db")
        server = request.getfixturevalue("etcd")
        return EtcdStore(parse_url(server.url))

    if request.param == "etcd":
        request.getfixturevalue("etcd")

    def run_test(test: Test) -> None:
        async def body() -> None:
            store = await opened()
            try:
                async with asyncio.timeout(30):
                    await store.commit([DeletePrefix("t/")])
                    await test(store)
            finally:
                await store.close()

        asyncio.run(body())

    return run_test


def test_what_sqlite_keeps_is_for_the_server_only(tmp_path: Path) -> None:
    """Also where an earlier server left it open to others."""

    async def body() -> None:
        path = tmp_path / "state.db"
        path.touch(mode=0o644)
        store = await SqliteStore.open(path)
        await store.commit([Put("k", b"")])
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()}
        await store.close()
        assert modes and set(modes.values()) == {0o600}, modes

    asyncio.run(body())


def test_put_get_delete(run: Run) -> None:
    async def test(store: Store) -> None:
        assert await store.get("t/a") is None
        version = await store.commit([Put("t/a", b"\0\xff1")])
        assert await store.get("t/a") == ("t/a", b"\0\xff1", version)
        later = await store.commit([Put("t/a", b"")])
        assert later > version
        assert await store.get("t/a") == ("t/a", b"", later)
        await store.commit([Delete("t/a"), Delete("t/never")])
        assert await store.get("t/a") is None

    run(test)


def test_list_is_sorted_and_exact(run: Run) -> None:
    async def test(store: Store) -> None:
        await store.commit([Put(f"t/x/{n:02}", b"%d" % n) for n in (3, 1, 2)] + [Put("t/x", b""), Put("t/y/1", b"")])
        assert [(entry.key, entry.value) for entry in await store.scan("t/x/")] == [
            ("t/x/01", b"1"), ("t/x/02", b"2"), ("t/x/03", b"3"),
        ]  # fmt: skip
        await store.commit([DeletePrefix("t/x/")])
        assert [entry.key for entry in await store.scan("t/")] == ["t/x", "t/y/1"]

    run(test)


def test_list_of_many(run: Run) -> None:
    async def test(store: Store) -> None:
        names = [f"t/many/{n:04}" for n in range(2500)]
        for start in range(0, len(names), 50):
            store.submit([Put(name, b"v") for name in names[start : start + 50]])
        assert [entry.key for entry in await store.scan("t/many/")] == names

    run(test)


def test_conditions_guard_the_whole_batch(run: Run) -> None:
    async def test(store: Store) -> None:
        first = await store.commit([Put("t/a", b"1")], [Condition("t/a", ABSENT)])
        for condition in (Condition("t/a", ABSENT), Condition("t/a", first + 1), Condition("t/b", first)):
            with pytest.raises(ConditionFailed):
                await store.commit([Put("t/a", b"2"), Put("t/b", b"2")], [condition])
        assert await store.get("t/b") is None
        await store.commit([Put("t/b", b"2")], [Condition("t/a", first), Condition("t/b", ABSENT)])
        await store.commit([Delete("t/a")], [Condition("t/a", first)])
        assert [entry.key for entry in await store.scan("t/")] == ["t/b"]

    run(test)


def test_of_two_writers_one_wins(run: Run) -> None:
    async def test(store: Store) -> None:
        outcomes = await asyncio.gather(
            *(store.commit([Put("t/owner", b"%d" % n)], [Condition("t/owner", ABSENT)]) for n in range(10)),
            return_exceptions=True,
        )
        assert [isinstance(outcome, int) for outcome in outcomes].count(True) == 1
        assert all(isinstance(outcome, int | ConditionFailed) for outcome in outcomes)

    run(test)


def test_batches_take_effect_in_order_and_share_transactions(run: Run) -> None:
    async def test(store: Store) -> None:
        before = store.transactions  # type: ignore[attr-defined]
        futures = [store.submit([Put(f"t/{n % 50}", b"%d" % n)]) for n in range(500)]
        versions = await asyncio.gather(*futures)
        assert versions == sorted(versions)
        assert {entry.key: entry.value for entry in await store.scan("t/")} == {
            f"t/{n}": b"%d" % (n + 450) for n in range(50)
        }
        assert store.transactions - before < 100  # type: ignore[attr-defined]

    run(test)


def test_batches_larger_than_allowed(run: Run) -> None:
    async def test(store: Store) -> None:
        most = [Put(f"t/{n}", b"") for n in range(MAX_BATCH - 1)]
        await store.commit(most, [Condition("t/0", ABSENT)])
        with pytest.raises(ValueError):
            await store.commit([*most, Put("t/one more", b"")], [Condition("t/0", ABSENT)])

    run(test)


def test_watch(run: Run) -> None:
    async def test(store: Store) -> None:
        start = await store.commit([Put("t/w/0", b"before")])
        watching = store.watch("t/w/", start)
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0.2)
        versions = [
            await store.commit(operations)
            for operations in ([Put("t/w/1", b"1")], [Put("t/other", b"")], [Put("t/w/1", b"2")], [Delete("t/w/1")])
        ]
        assert await first == Change("t/w/1", b"1", versions[0])
        assert await anext(watching) == Change("t/w/1", b"2", versions[2])
        assert await anext(watching) == Change("t/w/1", None, versions[3])
        await watching.aclose()  # type: ignore[attr-defined]

    run(test)


def test_keys_go_with_their_lease(run: Run) -> None:
    async def test(store: Store) -> None:
        lease = await store.grant(1)
        version = await store.commit([Put("t/l/1", b"", lease), Put("t/l/2", b"", lease), Put("t/l/3", b"")])
        watching = store.watch("t/l/", version)
        gone = [await anext(watching), await anext(watching)]
        assert sorted((change.key, change.value) for change in gone) == [("t/l/1", None), ("t/l/2", None)]
        await watching.aclose()  # type: ignore[attr-defined]
        assert [entry.key for entry in await store.scan("t/l/")] == ["t/l/3"]
        renewer = store.renewer()
        with pytest.raises(LeaseLost):
            await asyncio.to_thread(renewer.renew, lease, 3.0)
        renewer.close()
        with pytest.raises(LeaseLost):
            await store.commit([Put("t/l/4", b"", lease)])

    run(test)


def test_renewed_and_revoked_leases(run: Run) -> None:
    async def test(store: Store) -> None:
        lease = await store.grant(2)
        await store.commit([Put("t/l", b"", lease)])
        renewer = store.renewer()
        for _ in range(4):
            await asyncio.sleep(0.7)
            await asyncio.to_thread(renewer.renew, lease, 3.0)
        renewer.close()
        assert await store.get("t/l") is not None
        assert 0 < await store.time_left(lease) <= 2
        await store.revoke(lease)
        assert await store.get("t/l") is None
        await store.revoke(lease)
        with pytest.raises(LeaseLost):
            await store.time_left(lease)

    run(test)


def test_closed_store_refuses(run: Run) -> None:
    async def test(store: Store) -> None:
        await store.close()
        with pytest.raises(StoreError):
            await store.commit([Put("t/a", b"")])
        with pytest.raises(StoreError):
            await store.get("t/a")

    run(test)


def test_sqlite_keeps_what_was_committed(tmp_path: Path) -> None:
    async def body() -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        lease = await store.grant(60)
        version = await store.commit([Put("a", b"1"), Put("leased", b"", lease)])
        with pytest.raises(StoreError):
            await SqliteStore.open(tmp_path / "state.db")
        await store.close()
        again = await SqliteStore.open(tmp_path / "state.db")
        assert await again.scan("") == [("a", b"1", version)]
        assert await again.commit([Put("b", b"")]) > version
        await again.close()

    asyncio.run(body())


def test_etcd_addresses() -> None:
    assert parse_url("etcd://a:1,[::1]:2") == ["http://a:1", "http://[::1]:2"]
    for tls in ("etcds", "https"):
        assert parse_url(f"{tls}://a:1,[::1]:2") == ["https://a:1", "https://[::1]:2"]
    for bad in ("ftp://a:1", "etcd://", "etcd://a", "etcd://a:0", "etcd://a:x", "etcd://a:1,,b:2", "a:1"):
        with pytest.raises(ValueError):
            parse_url(bad)
