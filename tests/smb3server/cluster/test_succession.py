"""Which node takes a service that nobody has."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from smb3server.cluster import cluster as cluster_module
from smb3server.cluster.cluster import STARTUP_GRACE, SUCCESSION_DELAY, Cluster
from smb3server.persistence import journal as persistence
from smb3server.persistence.store import Change, Store
from smb3server.server.server import Server
from smb3server.settings.cluster import ClusterConfig, ServiceConfig
from smb3server.settings.server import Settings
from tests.lab.fake_store import FakeStore


def test_who_leaves_a_free_service_to_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has just joined waits for one that would rather have it and may be a moment behind, not for ever."""
    now = 1000.0
    monkeypatch.setattr(cluster_module, "boottime", lambda: now)
    config = ServiceConfig("files", nodes=["a", "b"])

    async def body() -> None:
        nonlocal now
        found = Cluster(
            Server(Settings(server_name="CLU")),
            persistence.Persistence(),
            cast("Store", FakeStore()),
            ClusterConfig("", "b", services=[config]),
            dict,
        )
        found.services["files"].storage.problem = None

        def change(key: str, value: bytes | None = b"{}") -> float:
            found.view.apply(Change(found.prefix + key, value, 1))
            return found.patience(config, found.candidates(config))

        found.membership.joined_at = now
        assert change("nodes/b") == STARTUP_GRACE
        now += STARTUP_GRACE
        assert change("nodes/b") == 0.0
        assert change("nodes/a") == SUCCESSION_DELAY
        assert change("draining/a") == 0.0
        assert change("draining/b") == float("inf")

    asyncio.run(body())
