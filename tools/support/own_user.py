"""Shares whose files the tests and tools touch, too: everybody acts as the user who runs the server, be it root."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from smb3server.backends.base import User

NAME = pwd.getpwuid(os.geteuid()).pw_name
CREDENTIALS = User(os.geteuid(), os.getegid())
LINE = f'force_user = "{NAME}"\n'
"""For a section [[share]]."""


def option(share: str, path: Path) -> str:
    """For the option ``--share``."""
    return f"{share}={path},user={NAME}"
