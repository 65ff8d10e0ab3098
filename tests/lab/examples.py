"""How many examples hypothesis makes: a quarter in ``make test``, all in ``.ci/run``. They are others each time."""

from __future__ import annotations

import os

from hypothesis import settings

_ALL = "ALL_EXAMPLES" in os.environ
_FEWEST = 20
_DEFAULT = 100
"""What hypothesis itself would make."""


def examples(number: int) -> int:
    """Return how many of ``number`` examples are made."""
    return number if _ALL else max(min(number, _FEWEST), number // 4)


def choose() -> None:
    """Set the number for tests that name none."""
    settings.register_profile("of this run", max_examples=examples(_DEFAULT))
    settings.load_profile("of this run")
