"""Commands, one section of MS-SMB2 3.3.5 per module; importing a module registers its handlers."""

from __future__ import annotations

import importlib

MODULES = (
    "negotiate",
    "session_setup",
    "tree_connect",
    "echo",
    "create",
    "close",
    "flush",
    "read",
    "write",
    "lock",
    "oplock_break",
    "ioctl",
    "fsctl_file",
    "fsctl_network",
    "fsctl_pipe",
    "query_directory",
    "change_notify",
    "query_info",
    "set_info",
)


def load() -> None:
    """Register every handler."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")
