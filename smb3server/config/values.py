"""Values that are written the same way on the command line and in the file."""

from __future__ import annotations

import os
import pwd

from smb3server.backends.base import User
from smb3server.backends.local.impersonate import may_act
from smb3server.config.error import ConfigError

RDMA_CHOICES = ("auto", "off", "iwarp", "roce", "verbs")


def parse_rdma(text: str) -> str:
    """Read ``auto``, ``off``, or fabrics separated by commas. Raises ``ConfigError``."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in RDMA_CHOICES]:
        raise ConfigError(f"rdma: {unknown[0] or 'nothing'} is not one of {', '.join(RDMA_CHOICES)}")
    if len(names) > 1 and (len(set(names)) < len(names) or {"auto", "off"} & set(names)):
        raise ConfigError(f"rdma: {text}: auto and off stand alone, and a fabric is named once")
    return ",".join(names)


def check_port(value: int | None) -> int | None:
    """Return the port number; None stays None. Raises ``ConfigError``."""
    if value is not None and not 0 <= value <= 65535:
        raise ConfigError(f"port {value} is not within 0..65535")
    return value


def unix_user(what: str, name: str | None, shared: bool = False) -> User | None:
    """Look up the credentials of a user of the host; return None if ``name`` is None or empty.

    ``what`` names the setting in errors. ``shared`` means that several users act as this one. Acting as another user
    requires capabilities (``impersonate.may_act``). Raises ``ConfigError``.
    """
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"{what}: this machine has no user {name}") from None
    if not may_act() and os.geteuid() != entry.pw_uid:
        raise ConfigError(f"{what}: the server has to run as root, or with CAP_SETUID and CAP_SETGID, to act as {name}")
    return User(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)), shared)
