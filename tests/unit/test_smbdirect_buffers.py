"""Registrations of pooled memory live as long as the memory does."""

from __future__ import annotations

from collections import Counter
from typing import Any

from smbdirect.buffers import Allowance, BufferPool, RegistrationCache


class Needs:
    requires_registration = True


class Region:
    def __init__(self, live: set[Region]) -> None:
        self._live = live
        live.add(self)

    def deregister(self) -> None:
        self._live.remove(self)


class Endpoint:
    """Only what the cache asks of one."""

    def __init__(self) -> None:
        self.capabilities = Needs()
        self.live: set[Region] = set()

    def register(self, memory: memoryview, access: int) -> Region:
        return Region(self.live)


def cache_of(pool: BufferPool) -> tuple[Any, RegistrationCache, Counter[str]]:
    endpoint: Any = Endpoint()
    counters: Counter[str] = Counter()
    cache = RegistrationCache(endpoint, counters)
    pool.caches.add(cache)
    return endpoint, cache, counters


def test_kept_memory_stays_registered() -> None:
    pool = BufferPool(retained=1 << 20)
    endpoint, cache, counters = cache_of(pool)
    for _ in range(10):
        buffer = pool.acquire(5000)
        cache.add(buffer.view)
        assert cache.covers(buffer.view[100:200])
        buffer.release()
    assert counters["registrations"] == len(endpoint.live) == 1


def test_dropped_memory_is_deregistered_on_every_connection() -> None:
    pool = BufferPool(retained=16384)
    sides = [cache_of(pool) for _ in range(2)]
    for _ in range(100):
        buffers = [pool.acquire(8192) for _ in range(4)]
        for buffer in buffers:
            for _, cache, _ in sides:
                cache.add(buffer.view)
        for buffer in buffers:
            buffer.release()
    for endpoint, cache, _ in sides:
        assert len(endpoint.live) == 2
        cache.clear()
        assert not endpoint.live


def test_a_pool_forgets_ended_connections() -> None:
    pool = BufferPool(retained=0)
    endpoint, cache, _ = cache_of(pool)
    buffer = pool.acquire(100)
    cache.add(buffer.view)
    cache.clear()
    buffer.release()
    assert not endpoint.live
    del cache
    assert not list(pool.caches)


def test_allowance_is_shared() -> None:
    allowance = Allowance(100)
    assert allowance.take(60)
    assert not allowance.take(41)
    assert allowance.taken == 60
    assert allowance.take(40)
    allowance.give_back(60)
    assert allowance.taken == 40
