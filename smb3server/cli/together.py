"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])


def together(*options: Callable[[Any], Any]) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that adds options and arguments to a command, in the order of its help."""

    def add(function: _Decorated) -> _Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return add
