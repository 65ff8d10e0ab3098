from __future__ import annotations

from collections.abc import Iterator

import pytest

from smb3server.dispatch.watchdog import Turn
from tests.lab.watching import watched


@pytest.fixture(autouse=True)
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Turn]]:
    yield from watched(monkeypatch, 0.1)
