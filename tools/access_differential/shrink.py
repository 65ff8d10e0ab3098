"""Make a failing list as short as possible by leaving out irrelevant items. (Delta debugging.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def shrink(items: list[T], fails: Callable[[list[T]], bool], tries: int = 200) -> list[T]:
    """Return a part of ``items`` that still fails and from which no piece could be left out within ``tries``.

    ``items`` as a whole must fail; ``fails`` is called with shorter lists only. The algorithm is Zeller's ddmin with
    complements only.
    """
    size = max(1, len(items) // 2)
    while tries > 0:
        at, shortened = 0, False
        while at < len(items) and tries > 0:
            candidate = items[:at] + items[at + size :]
            if len(candidate) < len(items):
                tries -= 1
                if fails(candidate):
                    items, shortened = candidate, True
                    continue
            at += size
        if size == 1 and not shortened:
            break
        size = max(1, size // 2) if not shortened or size > 1 else 1
    return items
