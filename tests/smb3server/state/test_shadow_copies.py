"""The steps of making a set of shadow copies, their order and their timer. [MS-FSRVP 3.1.4]"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable

import pytest

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.state import shadow_copies as module
from smb3server.state.shadow_copies import Error, ShadowCopyAgent, ShadowCopyError, ShadowCopySet, Stage
from smb3server.state.share import Share

ME, ANOTHER = "192.0.2.1", "192.0.2.2"


class Store:
    """Shares in memory whose snapshots are names alone."""

    def __init__(self) -> None:
        self.shares = {name: Share(name, backend=MemoryBackend()) for name in ("one", "two", "hidden$", "other")}
        self.snapshots: set[tuple[str, str]] = set()
        self.served: dict[str, Share] = {}
        self.kept: list[ShadowCopySet] = []
        self.fails = ""
        """The share of which there can be no snapshot."""
        self.number = 0

    def find(self, name: str) -> Share | None:
        return self.shares.get(name.casefold())

    def volume(self, share: Share) -> str:
        if share.name == "other":
            raise ShadowCopyError(Error.NOT_SUPPORTED)
        return share.name

    async def make(self, share: Share) -> tuple[int, str]:
        await asyncio.sleep(0)
        if share.name == self.fails:
            raise ShadowCopyError(Error.FAILED)
        self.number += 1
        self.snapshots.add((share.name, f"s{self.number}"))
        return self.number, f"s{self.number}"

    async def remove(self, name: str, snapshot: str) -> None:
        await asyncio.sleep(0)
        self.snapshots.remove((name, snapshot))

    def expose(self, share: Share, name: str, seconds: int) -> Share:
        self.served[name] = Share(name, backend=share.backend, as_of=seconds)
        return self.served[name]

    def withdraw(self, share: Share) -> None:
        del self.served[share.name]

    async def keep(self, sets: Iterable[ShadowCopySet]) -> None:
        self.kept = list(sets)


def run(test: Callable[[ShadowCopyAgent, Store], Awaitable[None]]) -> None:
    async def body() -> None:
        store = Store()
        agent = ShadowCopyAgent(store)
        try:
            await test(agent, store)
        finally:
            agent.close()

    asyncio.run(body())


async def fails(call: Awaitable[object], error: Error) -> None:
    with pytest.raises(ShadowCopyError) as raised:
        await call
    assert raised.value.error == error


async def made(agent: ShadowCopyAgent, *shares: str, context: int = 0) -> ShadowCopySet:
    await agent.set_context(ME, context)
    found = await agent.start()
    for share in shares:
        await agent.add(found.id, f"\\\\server\\{share}\\")
    return found


def test_from_the_context_to_the_mapping_and_its_end() -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        found = await made(agent, "one", "TWO")
        await agent.prepare(found.id)
        assert not agent.is_copied("\\\\server\\one")
        await agent.commit(found.id)
        assert agent.is_copied("\\\\server\\one")
        assert store.snapshots == {("one", "s1"), ("two", "s2")}
        await agent.expose(found.id)
        await agent.recovered(found.id)
        assert [entry.id for entry in store.kept] == [found.id]
        first, second = found.copies
        _, copy = agent.mapping(found.id, first.id, "\\\\server\\ONE")
        assert copy.exposed is not None
        assert copy.exposed.name == f"one@{{{str(first.id).upper()}}}"
        await fails(agent.delete_mapping(found.id, uuid.uuid4(), "\\\\server\\one"), Error.INVALID_ARGUMENT)
        await fails(agent.delete_mapping(found.id, first.id, "\\\\server\\two"), Error.NOT_FOUND)
        await agent.delete_mapping(found.id, first.id, "\\\\server\\one\\")
        assert store.snapshots == {("two", "s2")}
        await agent.delete_mapping(found.id, second.id, "\\\\server\\two")
        assert (store.snapshots, store.served, agent.sets, store.kept) == (set(), {}, {}, [])
        await fails(agent.delete_mapping(found.id, second.id, "\\\\server\\two"), Error.NOT_FOUND)

    run(test)


def test_each_call_has_its_place() -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        await fails(agent.start(), Error.BAD_STATE)
        await agent.set_context(ME, 0)
        found = await agent.start()
        await fails(agent.start(), Error.IN_PROGRESS)
        for call in (agent.prepare, agent.commit, agent.expose):
            await fails(call(found.id), Error.BAD_STATE)
            await fails(call(uuid.uuid4()), Error.INVALID_ARGUMENT)
        await fails(agent.recovered(found.id), Error.BAD_STATE)
        await fails(agent.recovered(uuid.uuid4()), Error.ID_MISMATCH)
        await fails(agent.abort(uuid.uuid4()), Error.ID_MISMATCH)
        await fails(agent.add(uuid.uuid4(), "\\\\server\\one"), Error.INVALID_ARGUMENT)
        await agent.add(found.id, "\\\\server\\one")
        for call in (agent.expose, agent.recovered):
            await fails(call(found.id), Error.BAD_STATE)
        await agent.commit(found.id)
        await fails(agent.add(found.id, "\\\\server\\two"), Error.BAD_STATE)
        await fails(agent.commit(found.id), Error.BAD_STATE)
        with pytest.raises(ShadowCopyError):
            agent.mapping(found.id, found.copies[0].id, "\\\\server\\one")
        await agent.expose(found.id)
        await fails(agent.expose(found.id), Error.BAD_STATE)

    run(test)


@pytest.mark.parametrize(
    ("unc", "error"),
    [
        ("\\\\server\\missing", Error.NOT_FOUND),
        ("\\\\server\\other", Error.NOT_SUPPORTED),
        ("\\\\server", Error.INVALID_ARGUMENT),
        ("one", Error.INVALID_ARGUMENT),
        ("", Error.INVALID_ARGUMENT),
        ("\\\\server\\one", Error.ALREADY_EXISTS),
    ],
)
def test_shares_that_cannot_be_added(unc: str, error: Error) -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        found = await made(agent, "one")
        await fails(agent.add(found.id, unc), error)
        assert len(found.copies) == 1

    run(test)


@pytest.mark.parametrize("context", [0x00400000, 0x00400010, 1, 8, 0x11, 0x80000000])
def test_contexts_that_cannot_be_served(context: int) -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        await fails(agent.set_context(ME, context), Error.UNSUPPORTED_CONTEXT)
        await fails(agent.start(), Error.BAD_STATE)

    run(test)


def test_all_snapshots_or_none() -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        found = await made(agent, "one", "two")
        store.fails = "two"
        await fails(agent.commit(found.id), Error.FAILED)
        assert store.snapshots == set()
        assert found.stage is Stage.ADDED
        store.fails = ""
        await agent.commit(found.id)
        assert len(store.snapshots) == 2

    run(test)


def test_another_client_waits_its_turn() -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        found = await made(agent, "one")
        await fails(agent.set_context(ANOTHER, 0), Error.IN_PROGRESS)
        await agent.commit(found.id)
        # The same client gives up what it has begun, but not without end.
        await agent.set_context(ME, 0)
        assert (agent.sets, store.snapshots) == ({}, set())
        for _ in range(module.MAX_RETRIES - 1):
            await agent.set_context(ME, 0)
        await fails(agent.set_context(ME, 0), Error.IN_PROGRESS)
        found = await made(agent, "one")
        await agent.commit(found.id)
        await agent.expose(found.id)
        await agent.set_context(ANOTHER, 0)
        assert len(store.snapshots) == 1

    run(test)


@pytest.mark.parametrize("steps", range(5))
def test_a_client_that_makes_no_further_call_loses_its_set(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORT", 0.0)
    monkeypatch.setattr(module, "LONG", 0.0)

    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        await agent.set_context(ME, 0)
        found = await agent.start() if steps else None
        if found is not None:
            if steps > 1:
                await agent.add(found.id, "\\\\server\\one")
            if steps > 2:
                await agent.prepare(found.id)
            if steps > 3:
                await agent.commit(found.id)
        async with asyncio.timeout(10):
            while agent._context is not None:
                await asyncio.sleep(0)
            while agent.sets or store.snapshots:
                await asyncio.sleep(0)
        await agent.set_context(ANOTHER, 0)

    run(test)


def test_an_aborted_set_leaves_nothing() -> None:
    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        for exposed in (False, True):
            found = await made(agent, "one")
            await agent.commit(found.id)
            if exposed:
                await agent.expose(found.id)
            await agent.abort(found.id)
            assert (agent.sets, store.snapshots, store.served, store.kept) == ({}, set(), {}, [])

    run(test)


def test_what_a_restart_keeps() -> None:
    """Persistent sets are served again; the others are for the time of the backup alone, or were not finished."""

    async def test(agent: ShadowCopyAgent, store: Store) -> None:
        lasting = await made(agent, "hidden$", context=0x19)
        await agent.commit(lasting.id)
        await agent.expose(lasting.id)
        passing = await made(agent, "one", context=0x10)
        await agent.commit(passing.id)
        await agent.expose(passing.id)
        begun = await made(agent, "two", context=0x19)
        await agent.commit(begun.id)
        kept = store.kept
        assert len(kept) == 3
        for copy in (*lasting.copies, *passing.copies):
            copy.exposed = None
        store.served.clear()
        again = ShadowCopyAgent(store)
        await again.restore(kept)
        assert store.snapshots == {("hidden$", "s1")}
        assert list(store.served) == [f"hidden$@{{{str(lasting.copies[0].id).upper()}}}$"]
        assert [entry.id for entry in store.kept] == [lasting.id]

    run(test)
