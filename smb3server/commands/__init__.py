"""Commands, one section of MS-SMB2 3.3.5 per module; importing a module registers its handlers.

Reading order: ``echo`` (the least there can be) -> ``close`` -> ``read`` and ``write`` -> ``create`` -> ``info`` ->
``fsctl`` -> the others, each by itself.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module here and in the folders below, which registers every handler."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
