"""A server's watchdog in tests: no command may take the event loop for long, whatever the test sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smb3server.dispatch.watchdog import Turn, Watchdog
from smb3server.server.server import Server


def watched(monkeypatch: pytest.MonkeyPatch, limit: float) -> Iterator[list[Turn]]:
    """Give every server of a test a watchdog; fail the test if a command took more than ``limit`` seconds of processor
    time on the event loop's thread. Time that other programs or other threads had does not count."""
    slow: list[Turn] = []
    make = Server.__init__

    def init(self: Server, *arguments: object, **options: object) -> None:
        make(self, *arguments, **options)  # type: ignore[arg-type]
        if self.measuring.watchdog is None:
            self.measuring.watchdog = Watchdog(limit)
        self.measuring.watchdog.on_slow = slow.append

    monkeypatch.setattr(Server, "__init__", init)
    yield slow
    too_long = [turn for turn in slow if turn.processor > limit]
    assert not too_long, f"commands held up everybody: {too_long}"
