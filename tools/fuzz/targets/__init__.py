"""The subjects of the coverage-guided fuzzer, one module each with a ``TARGET``."""

from __future__ import annotations

import importlib
import pkgutil

from tools.fuzz.target import Target


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Target:
    """Import a target."""
    target = importlib.import_module(f"{__name__}.{name}").TARGET
    if not isinstance(target, Target):
        raise TypeError(f"{name} has no TARGET")
    return target
