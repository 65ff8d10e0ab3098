"""A server for tests of other programs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from smb3server import client as remote
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.client.sync import connect
from smb3server.config.error import ConfigError
from smb3server.testing import serve


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_a_folder_in_a_block_that_blocks(tmp_path: Path, user: str) -> None:
    """As root, too, and in a folder that only its owner may enter."""
    tmp_path.chmod(0o700)
    (tmp_path / "a").write_text("hi")
    before = threading.active_count()
    with serve(tmp_path, user=user) as url:
        assert url == f"smb://{user}@127.0.0.1:{url.port}/data"
        with connect(url, password=url.password) as share:
            assert share.read_text("a") == "hi"
            share.write_text("b", "ho")
        with pytest.raises(PermissionError), connect(url, password="not this one"):
            pass
    assert (tmp_path / "b").read_text() == "ho"
    assert (tmp_path / "b").stat().st_uid == tmp_path.stat().st_uid
    with pytest.raises(OSError), connect(url, password=url.password, patience=0.1):
        pass
    assert threading.active_count() <= before + 2, "the client's loop, and a worker"


def test_in_an_event_loop_and_by_rdma(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(tmp_path, "--rdma=iwarp", "--rdma-port", "0") as url:
            assert any(address.startswith("iwarp ") for address in url.service.addresses())
            async with remote.connect(url, password=url.password, rdma="off") as share:
                await share.write_text("c", "by asyncio")

    asyncio.run(main())
    assert (tmp_path / "c").read_text() == "by asyncio"


def test_a_store_of_the_programs_own() -> None:
    store = MemoryBackend()
    with serve(store) as url:
        with connect(url, password=url.password) as share:
            share.write_text("d", "in memory")
            assert share.listdir() == ["d"]
        with pytest.raises(ConfigError, match="there is one of this name"):
            url.service.add_store("DATA", store)
        with pytest.raises(ConfigError, match="not a valid share name"):
            url.service.add_store("a/b", store)
    assert store.used == len("in memory")


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"), serve(tmp_path / "nowhere"):
        pass
