"""Judge a configuration as the service's own user would, whoever asks.

A server that systemd starts runs as a user of its own, with a few capabilities. Root has more rights than it, and the
same user without capabilities (sudo -u) has fewer.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator

from smb3server.backends.local import impersonate
from smb3server.config.error import ConfigError
from smb3server.config.schema import Document
from smb3server.process import capabilities
from smb3server.process.capabilities import Sets


def find(document: Document) -> str:
    """Return the name of the user who owns the server's state directory, else its users file.

    Empty if this process is not root, nobody else owns them, or the configuration says itself whom the server becomes.
    """
    server = document.server
    if os.geteuid() != 0 or server.run_as or server.drop_privileges:
        return ""
    for place in (server.state, server.users_file):
        with contextlib.suppress(OSError, KeyError):
            uid = os.stat(place).st_uid if place else 0
            if uid != 0:
                return pwd.getpwuid(uid).pw_name
    return ""


def lacks_rights() -> bool:
    """Return whether this process can do less than the service: it is neither root nor has capabilities."""
    return os.geteuid() != 0 and not impersonate.may_act()


@contextlib.contextmanager
def judging_as(name: str) -> Iterator[None]:
    """Have this process, which is root and has one thread, act as the service's user with the unit's capabilities.

    An empty name changes nothing. Raises ``ConfigError``.
    """
    if not name:
        yield
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"--as {name}: this machine has no user {name}") from None
    if user.pw_uid == os.geteuid():
        yield
        return
    if os.geteuid() != 0:
        raise ConfigError(f"--as {name}: only root can judge as another user; remedy: sudo")
    groups, gid, before = os.getgroups(), os.getegid(), capabilities.get()
    os.setgroups(os.getgrouplist(name, user.pw_gid))
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        # The change of the user has emptied the effective set.
        capabilities.Change(before._replace(effective=before.permitted & capabilities.UNIT)).make()
        impersonate.reconsider()
        yield
    finally:
        os.seteuid(0)
        capabilities.Change(Sets(*before)).make()
        os.setegid(gid)
        os.setgroups(groups)
        impersonate.reconsider()
