from __future__ import annotations

from collections.abc import Iterator

import pytest

from smb3server.dispatch.watchdog import Turn
from tests.lab.watching import watched


@pytest.fixture(autouse=True)
def slow_turns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Turn]]:
    """Fail a test in which a command took the event loop for longer than its module's ``LONGEST_TURN``, in seconds."""
    yield from watched(monkeypatch, getattr(request.module, "LONGEST_TURN", 0.5))
