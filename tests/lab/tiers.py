"""Which combinations of parameters are in every run; the others are ``long`` (tests/README.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def each_with_one(rows: Iterable[object], columns: Sequence[object]) -> list[Any]:
    """Return the parameters of all pairs. In every run are those of each row with one of the columns, in turn."""
    return [
        pytest.param(row, column, marks=[] if number % len(columns) == place else [pytest.mark.long])
        for number, row in enumerate(rows)
        for place, column in enumerate(columns)
    ]
