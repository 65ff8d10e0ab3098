"""How many functions the client passes through to fetch a small file, and how often it changes the file of its code."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from smb3server.client import connect
from tests.lab.remote import PASSWORD, Home, run
from tests.lab.walks import Walk

MEASURED = 10
"""Downloads of which the shortest walk counts."""


def test_a_download_takes_a_short_walk(served: Home, folder: Path, tmp_path: Path) -> None:
    """Four requests: CREATE, READ, QUERY_INFO and CLOSE."""
    (folder / "a").write_bytes(os.urandom(4096))
    walks: list[Walk] = []

    async def work() -> None:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            for _ in range(MEASURED):
                await asyncio.sleep(0.01)
                walks.append(Walk())
                walks[-1].start()
                try:
                    await share.download("test/a", tmp_path / "a")
                finally:
                    walks[-1].stop()

    run(work)
    shortest = min(walks, key=lambda walk: walk.calls)
    assert any(step.function == "Tree.read" for step in shortest.steps), str(shortest)
    assert shortest.calls <= 225, str(shortest)
    assert shortest.changes <= 110, str(shortest)
