"""The modules of this checkout with their imports. A process parses them once: that takes seconds."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.check_layers.graph import Module, read_modules
from tools.check_layers.rooms import PACKAGES

ROOT = Path(__file__).parents[2]
PRODUCT = ("smb3server", "smbdirect", "witness")


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Collect no garbage meanwhile. Syntax trees are millions of objects and none: examining them takes most of the
    time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.cache
def modules() -> Mapping[str, Module]:
    """Return all modules by name."""
    with nothing_collected():
        return read_modules(ROOT, PACKAGES)


def of(packages: Iterable[str]) -> Iterator[Module]:
    """Yield the modules of these packages."""
    wanted = set(packages)
    return (module for name, module in modules().items() if name.partition(".")[0] in wanted)
