"""Live data: one report at an interval for all browsers that look, and none if nobody looks."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET

from smb3server.status.model import ChannelRecord, Report, SessionRecord
from smb3server.status.rates import add_rates

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two reports."""
SHARE_OF_TIME = 0.02
"""The part of the event loop's time that reports may take. With many clients they come less often."""
MAX_INTERVAL = 15.0
MAX_ROWS = 500
"""Sessions and channels in a report for a browser. Their number is in it, too, and rates are those of all."""


class Feed:
    """The reports of one server, with rates."""

    def __init__(self, make: Callable[[], Awaitable[Report]]) -> None:
        """``make`` returns a report (``smb3server/status/report.py::collect``)."""
        self._make = make
        self._last: Report | None = None
        self._text = b""
        self._arrived = asyncio.Event()
        """Set when there is the next report, and then replaced."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.viewers = 0

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Return each report as JSON, for one viewer. A slow viewer misses some. Ends with the feed."""
        self.viewers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            while not self._closed:
                await self._arrived.wait()
                if not self._closed:
                    yield self._text
        finally:
            self.viewers -= 1
            if not self.viewers and self._task is not None:
                self._task.cancel()
                self._task = None
                self._last = None

    async def _run(self) -> None:
        while True:
            start = time.perf_counter()
            try:
                self._text = await self._next()
            except Exception:
                log.exception("a report for the web page failed")
            else:
                self._wake()
            cost = time.perf_counter() - start
            await asyncio.sleep(min(max(INTERVAL, cost / SHARE_OF_TIME), MAX_INTERVAL))

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    async def _next(self) -> bytes:
        report = await self._make()
        add_rates(report, self._last or report)
        self._last = report
        return json.dumps(shorten(report)).encode()

    def close(self) -> None:
        """End all viewers."""
        self._closed = True
        self._wake()


def shorten(report: Report) -> dict[str, Any]:
    """Return a report as JSON with as many sessions and channels as a page can show, those with traffic first."""
    shown: dict[str, Any] = {}
    for name in report.__struct_fields__:
        value = getattr(report, name)
        if name in ("sessions", "channels"):
            shown[f"{name}_total"] = len(value)
            value = value if len(value) <= MAX_ROWS else sorted(value, key=_idleness)[:MAX_ROWS]
        if value is not UNSET:
            shown[name] = msgspec.to_builtins(value)
    return shown


def _idleness(entry: SessionRecord | ChannelRecord) -> float:
    return -(entry.rates.read + entry.rates.written) if entry.rates else 0.0
