"""Fixtures of the contract suite, which runs on every provider in ``tests.lab.providers``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from smbdirect.providers.base import CloseCause
from tests.lab.providers import PROVIDERS, Entry, Pair, Side, connect


@pytest.fixture(params=list(PROVIDERS))
def entry(request: pytest.FixtureRequest) -> Entry:
    """Return each provider in turn. Skip those that are not available."""
    chosen = PROVIDERS[request.param]
    reason = chosen.make().available()
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return chosen


@pytest.fixture
def blame(entry: Entry) -> Callable[[Side, CloseCause], Awaitable[None]]:
    """Return ``blame``: ``await blame(side, cause)`` asserts that the side's connection ends, for this cause if the
    provider learns it."""

    async def waiter(side: Side, cause: CloseCause) -> None:
        expected = {cause} if entry.responder_knows else {cause, CloseCause.PEER}
        assert (await side.end()).cause in expected

    return waiter


@pytest.fixture
def run(entry: Entry) -> Callable[..., None]:
    """Return ``run``: ``run(scenario, **connect_arguments)`` runs ``await scenario(pair)`` on a connected pair, then
    closes it."""

    def runner(scenario: Callable[[Pair], Awaitable[None]], **arguments: Any) -> None:
        async def main() -> None:
            pair = await connect(entry.make(), entry.host, **arguments)
            try:
                await scenario(pair)
            finally:
                pair.client.endpoint.abort()
                pair.server.endpoint.abort()
                await pair.client.end()
                await pair.server.end()
            assert len(pair.client.closed) == len(pair.server.closed) == 1

        asyncio.run(main())

    return runner
