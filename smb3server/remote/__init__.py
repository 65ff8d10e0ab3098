"""The former name of ``smb3server.client``: an alias for one release."""

from __future__ import annotations

import importlib
import sys
import warnings

from smb3server.client import *  # noqa: F403
from smb3server.client import __all__ as __all__

warnings.warn(
    "smb3server.remote is smb3server.client; this name ends with the next release", DeprecationWarning, stacklevel=2
)
for _name in ("sync", "filesystem"):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"smb3server.client.{_name}")
