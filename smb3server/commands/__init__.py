"""Commands, one section of MS-SMB2 3.3.5 per module; importing a module registers its handlers.

Belongs here: what a command checks and does, and its reply's body. Not here: headers, credits and signatures
(``dispatch``), and rules about a file that hold for several commands (``files``, ``access``).

Reading order: ``echo`` (the shortest) -> ``negotiate``, ``session_setup`` and ``tree_connect`` -> ``create`` (a folder)
-> ``read``, ``write``, ``flush`` and ``close`` -> ``query_directory`` and ``change_notify`` -> ``lock`` and
``oplock_break`` -> ``info`` (QUERY_INFO and SET_INFO) -> ``fsctl`` (IOCTL).
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module here and in the folders below, which registers every handler."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
