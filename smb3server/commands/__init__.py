"""Commands, one section of MS-SMB2 3.3.5 per module; importing a module registers its handlers."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module here, which registers every handler."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
