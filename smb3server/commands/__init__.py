"""The handlers of commands. A module has one section of MS-SMB2 3.3.5, and registers its handlers when imported.

Belongs here: the checks, the work and the reply body of a command. Not here: headers, credits and signatures
(``dispatch``), and rules about files that apply to several commands (``files``, ``access``).

Reading order: ``echo`` (the shortest) -> ``negotiate``, ``session_setup`` and ``tree_connect`` -> ``create`` (a folder)
-> ``read``, ``write``, ``flush`` and ``close`` -> ``query_directory`` and ``change_notify`` -> ``lock`` and
``oplock_break`` -> ``info`` (QUERY_INFO and SET_INFO) -> ``fsctl`` (IOCTL) -> ``apple`` (what they do for Macs alone).
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Register all handlers, by importing every module here and in the folders below."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
