"""Registrations of pooled memory live as long as the memory does, and are shared by the connections of a domain."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest

from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access
from smbdirect.providers.memory import LocalDomain
from smbdirect.rdma.pool import BufferPool
from smbdirect.rdma.registrations import RegistrationCache


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

    def __init__(self, domain: LocalDomain) -> None:
        self.capabilities = Needs()
        self.domain = domain
        self.live: set[Region] = set()

    def register(self, memory: memoryview, access: int) -> Region:
        return Region(self.live)


def cache_of(pool: BufferPool, domain: LocalDomain) -> tuple[Any, RegistrationCache, Counter[str]]:
    endpoint: Any = Endpoint(domain)
    counters: Counter[str] = Counter()
    cache = RegistrationCache(endpoint, counters, pool)
    pool.caches.add(cache)
    return endpoint, cache, counters


def test_pooled_memory_is_registered_when_it_is_made() -> None:
    pool, domain = BufferPool(retained=1 << 20), LocalDomain()
    home = pool.home(domain)
    for _ in range(10):
        buffer = pool.acquire(5000, home)
        assert home.covers(buffer.view.obj)
        buffer.release()
    assert pool.allocations == len(domain.live) == 1
    # Buffers that need no registration are others, so that none of these is taken away.
    plain = pool.acquire(5000)
    assert not home.covers(plain.view.obj)
    plain.release()
    pool.acquire(5000, home).release()
    assert pool.allocations == 2
    assert len(domain.live) == 1


def test_connections_of_a_domain_share_registrations() -> None:
    """However many there are and whichever of them uses a buffer, each is registered once."""
    pool, domain = BufferPool(retained=1 << 20), LocalDomain()
    caches = [cache_of(pool, domain) for _ in range(5)]
    assert len({id(cache.home) for _, cache, _ in caches}) == 1
    for _ in range(3):
        for _, cache, _ in caches:
            buffers = [pool.acquire(8192, cache.home) for _ in range(4)]
            for _, other, counters in caches:
                for buffer in buffers:
                    assert other.covers(buffer.view[100:200])
                    other.add(buffer.view)
                assert counters["registrations"] == 0
            for buffer in buffers:
                buffer.release()
    assert len(domain.live) == 4
    for endpoint, cache, _ in caches:
        assert not endpoint.live
        cache.clear()
    assert len(domain.live) == 4, "they outlive connections"


def test_domains_share_nothing() -> None:
    pool, domains = BufferPool(), [LocalDomain(), LocalDomain()]
    first, second = (pool.home(domain) for domain in domains)
    buffer = pool.acquire(8192, first)
    assert not second.covers(buffer.view.obj)
    buffer.release()
    assert pool.acquire(8192, second).view.obj is not buffer.view.obj
    assert [len(domain.live) for domain in domains] == [1, 1]


def test_dropped_memory_is_deregistered() -> None:
    pool, domain = BufferPool(retained=16384), LocalDomain()
    home = pool.home(domain)
    for _ in range(100):
        buffers = [pool.acquire(8192, home) for _ in range(4)]
        for buffer in buffers:
            buffer.release()
    assert len(domain.live) == len(home) == 2


def test_memory_of_no_domain_belongs_to_its_connections() -> None:
    pool, domain = BufferPool(retained=0), LocalDomain()
    sides = [cache_of(pool, domain) for _ in range(2)]
    buffer = pool.acquire(8192)
    for endpoint, cache, counters in sides:
        cache.add(buffer.view)
        cache.add(buffer.view)
        assert counters["registrations"] == len(endpoint.live) == 1
    sides[0][1].clear()
    assert not sides[0][0].live
    buffer.release()
    assert not sides[1][0].live
    assert not domain.live


def test_a_domain_that_goes_takes_its_registrations() -> None:
    pool, domain = BufferPool(retained=1 << 20), LocalDomain()
    home = pool.home(domain)
    out, free = pool.acquire(8192, home), pool.acquire(8192, home)
    free.release()
    assert pool.retained == 8192
    domain.close()
    assert home.closed and not len(home) and not domain.live
    assert pool.retained == 0
    out.release()
    assert pool.retained == 8192
    assert pool.acquire(8192).view.obj is out.view.obj, "of use to those that need no registration"
    assert pool.lent == 8192


def test_a_pool_that_goes_takes_its_registrations() -> None:
    pool, domain = BufferPool(), LocalDomain()
    pool.acquire(8192, pool.home(domain)).release()
    assert len(domain.live) == 1
    del pool
    gc.collect()
    assert not domain.live


def test_refused_registration_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, domain = BufferPool(), LocalDomain()
    home = pool.home(domain)

    def refuse(memory: memoryview, access: Access) -> None:
        raise ProviderError("locked memory is used up")

    monkeypatch.setattr(domain, "register", refuse)
    with pytest.raises(ProviderError):
        pool.acquire(8192, home)
    assert pool.lent == pool.allocations == pool.retained == len(home) == 0


def test_pooled_memory_gives_peers_no_right(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Access] = []
    domain = LocalDomain()
    register = domain.register
    monkeypatch.setattr(domain, "register", lambda memory, access: (asked.append(access), register(memory, access))[1])
    pool = BufferPool()
    pool.acquire(8192, pool.home(domain)).release()
    assert asked == [Access.LOCAL_WRITE]
    with pytest.raises(ProviderError, match="remote right"):
        register(memoryview(bytearray(1)), Access.LOCAL_WRITE | Access.REMOTE_READ)


def test_a_pool_forgets_ended_connections() -> None:
    pool, domain = BufferPool(retained=0), LocalDomain()
    endpoint, cache, _ = cache_of(pool, domain)
    buffer = pool.acquire(100)
    cache.add(buffer.view)
    cache.clear()
    buffer.release()
    assert not endpoint.live
    del cache
    assert not list(pool.caches)
