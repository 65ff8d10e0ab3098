"""The list of interfaces stops, also if an interface changes at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from smb3server.net import interfaces


@pytest.mark.parametrize("turns", range(8))
def test_it_stops_while_an_interface_changes(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(interfaces, "read_interfaces", list)

    async def main() -> None:
        listed = interfaces.InterfaceList()
        await listed.start()
        await asyncio.sleep(0)  # It waits for a change now.
        listed.refresh_soon()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await listed.stop()

    asyncio.run(main())
