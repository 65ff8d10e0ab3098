"""Shares whose files tests and tools also touch: all clients act as the user who runs the server, even root."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from smb3server.backends.base import User
from smb3server.config.sources.host_users import ALLOW_ROOT_VARIABLE

# What this process starts inherits it: root may then be the one that everybody acts as.
os.environ[ALLOW_ROOT_VARIABLE] = "1"
NAME = pwd.getpwuid(os.geteuid()).pw_name
CREDENTIALS = User(os.geteuid(), os.getegid())
LINE = f'force_user = "{NAME}"\n'
"""Line for a section [[share]]."""


def option(share: str, path: Path) -> str:
    """Return the value of the option ``--share``."""
    return f"{share}={path},user={NAME}"
