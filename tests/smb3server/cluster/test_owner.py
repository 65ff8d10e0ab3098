"""An ownership that another party has ended while this node could not see the store's changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.cluster.cluster import Cluster
from smb3server.persistence import journal as persistence
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import Delete, Put
from smb3server.server.server import Server
from smb3server.settings.cluster import ClusterConfig, ServiceConfig
from smb3server.settings.server import Settings


@pytest.mark.parametrize("change", ["none", "overwritten", "removed"])
def test_reading_everything_again_shows_a_lost_ownership(tmp_path: Path, change: str) -> None:
    async def body() -> None:
        store = await SqliteStore.open(tmp_path / "store")
        try:
            cluster = Cluster(
                Server(Settings(server_name="CLU")),
                persistence.Persistence(),
                store,
                ClusterConfig("", "a", services=[ServiceConfig("files", nodes=["a", "b"])]),
                dict,
            )
            (service,) = cluster.services.values()
            service._version = await store.commit([Put(service.owner_key, b'{"node": "a"}')])
            service.owned = True
            if change == "overwritten":
                await store.commit([Put(service.owner_key, b'{"node": "b"}')])
            elif change == "removed":
                await store.commit([Delete(service.owner_key)])
            await cluster._read()
            assert service.owned is (change == "none")
        finally:
            await store.close()

    asyncio.run(body())
