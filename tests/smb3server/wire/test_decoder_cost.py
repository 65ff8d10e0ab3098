"""What decoders that a stranger reaches cost by the byte, and that the cost is linear in the input's size."""

from __future__ import annotations

import asyncio
import logging

import pytest

from smb3server.dispatch import dispatcher
from tools.bench.decoder_cost import CASES, Case, calls, seconds

LINEAR = 2.3
FIXED_CALLS = 150
"""Of any input."""
PER_KIB = 0.01
"""Seconds of processor time: several times what the slowest decoder takes on a slow machine."""


@pytest.fixture(autouse=True)
def slow_turns() -> None:
    """Nobody looks for slow turns here: calls are counted by a profiler, which makes all of them slow."""


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_twice_the_input_costs_twice_the_work(
    case: Case, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    # A chain is measured as a whole, not up to where it lets others have their turn.
    monkeypatch.setattr(dispatcher, "TURN", float("inf"))

    async def body() -> None:
        calls(case, case.most)  # whatever is done once only
        half, whole = calls(case, case.most // 2), calls(case, case.most)
        assert whole <= LINEAR * half + FIXED_CALLS
        assert seconds(case, case.most) <= PER_KIB * max(case.most / 1024, 1)

    asyncio.run(body())
