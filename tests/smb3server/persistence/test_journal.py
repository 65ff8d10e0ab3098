"""The journal of opens while its store is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from smb3server.persistence import journal as persistence
from smb3server.persistence.store import Condition, ConditionFailed, Store, StoreError
from smb3server.state.share import Share

if TYPE_CHECKING:
    from smb3server.state.objects import Open


class Unreachable:
    """A store that is away once, and then finds that this node is owner no longer."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, operations: object, conditions: object) -> asyncio.Future[int]:
        self.submitted += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreError("away") if self.submitted == 1 else ConditionFailed("owner"))
        return future


@pytest.mark.parametrize("ended", [False, True])
def test_what_a_service_left_behind_harms_no_later_one(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    """A record that could not be removed is no reason to stop serving once the service has been taken over again."""
    monkeypatch.setattr(persistence, "RETRY_DELAY", 0.01)

    async def body() -> None:
        store, refused = Unreachable(), asyncio.Event()
        domain = persistence.Domain(cast("Store", store), "s/", (Condition("owner", 1),), refused.set)
        keeper = persistence.Persistence()
        share = Share("data")
        keeper.serve(domain, [share])
        keeper.closed(cast("Open", SimpleNamespace(file_id=(7, 8), tree=SimpleNamespace(share=share))))
        await keeper.drain()
        domain.ended = ended
        await asyncio.sleep(0.1)
        assert refused.is_set() is not ended
        assert store.submitted == 1 if ended else store.submitted > 1
        keeper.close()

    asyncio.run(body())
