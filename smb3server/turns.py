"""Callbacks that are kept apart: what one of them raises reaches neither its caller nor the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)

_P = ParamSpec("_P")


def call_apart(callback: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call ``callback`` now. Log what it raises, instead of raising it."""
    try:
        callback(*args, **kwargs)
    except Exception:
        log.exception("a callback failed")


def call_in_own_turn(callback: Callable[[], object]) -> None:
    """Call ``callback`` in the next turn of the event loop. Log what it raises."""
    asyncio.get_running_loop().call_soon(call_apart, callback)
