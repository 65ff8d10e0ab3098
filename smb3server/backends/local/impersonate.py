"""Acting as a user for one or a few system calls (Linux: credentials belong to threads).

The kernel checks a thread's file-system ids and its effective capabilities. ``setfsuid`` takes the capabilities of the
file system away from a thread only when the id was 0 before (capabilities(7)), and never CAP_SYS_RESOURCE, which lifts
quotas. So a server that is not root, or still has CAP_SYS_RESOURCE, lowers its effective set by itself as well."""

from __future__ import annotations

import errno
import functools
import os
from types import TracebackType
from typing import NamedTuple

from smb3server.backends.base import User
from smb3server.backends.local import syscalls
from smb3server.process import capabilities
from smb3server.process.capabilities import Capability, Change, Sets

ACTING = Capability.SETUID | Capability.SETGID
"""What acting as another user takes."""
OF_FILES = (
    Capability.CHOWN
    | Capability.DAC_OVERRIDE
    | Capability.DAC_READ_SEARCH
    | Capability.FOWNER
    | Capability.FSETID
    | Capability.LINUX_IMMUTABLE
    | Capability.MKNOD
    | Capability.MAC_OVERRIDE
)
"""Those that go when the file-system uid changes from 0, and come back with it."""
_NO_USERS = OF_FILES | Capability.SYS_RESOURCE | Capability.SYS_ADMIN
"""What lets nobody do more than he may: neither with files, nor with space."""


class _Own(NamedTuple):
    """The credentials of this process when it acts as itself."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    lower: Change | None
    """Lowers the effective set; None: ``setfsuid`` does all that it takes."""
    restore: Change | None


@functools.cache
def _own() -> _Own | None:
    """Return the credentials of this process. None: it cannot act as another user."""
    sets = capabilities.get()
    if sets.effective & ACTING != ACTING:
        return None
    uid = os.geteuid()
    lower = restore = None
    if uid != 0 or sets.effective & Capability.SYS_RESOURCE:
        lower = Change(Sets(sets.effective & ~_NO_USERS, sets.permitted, sets.inheritable))
        restore = Change(sets)
    return _Own(uid, os.getegid(), tuple(os.getgroups()), lower, restore)


def may_act() -> bool:
    """Return whether this process may act as other users: it has CAP_SETUID and CAP_SETGID, root or not."""
    return _own() is not None


def reconsider() -> None:
    """Forget what this process may do: its user or its capabilities have changed."""
    _own.cache_clear()


class ActAs:
    """Context manager: file-system uid, gid and groups of this thread are the user's inside, and no capability helps.

    None is the server's own user, who has no capabilities inside either, unless that is root. Does nothing where the
    server cannot act as others: then the kernel checks the server's own rights. No thread may be started inside: it
    would keep the user's credentials. Does not nest.
    """

    __slots__ = ("_own", "_user")

    def __init__(self, user: User | None) -> None:
        own = _own()
        if user is None and own is not None and own.uid != 0:
            user = User(own.uid, own.gid, own.groups)
        self._own = own if user is not None else None
        self._user = user

    def __enter__(self) -> None:
        own, user = self._own, self._user
        if own is None or user is None:
            return
        try:
            if user.groups != own.groups:
                syscalls.set_thread_groups(user.groups)
            syscalls.set_fsgid(user.gid)
            syscalls.set_fsuid(user.uid)
            if own.lower is not None and user.uid != 0:
                own.lower.make()
        except BaseException:
            self._restore(own, user)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._own is not None and self._user is not None:
            self._restore(self._own, self._user)

    @staticmethod
    def _restore(own: _Own, user: User) -> None:
        syscalls.set_fsuid(own.uid)
        if own.restore is not None:
            # After the uid: leaving uid 0 would take capabilities away again.
            own.restore.make()
        syscalls.set_fsgid(own.gid)
        if user.groups != own.groups:
            syscalls.set_thread_groups(own.groups)


class SpaceOf:
    """Context manager: what is written to open descriptors inside takes the user's space, not the server's.

    The right to write was checked when the descriptor was opened. What is asked for each new block is the file-system
    uid, which may own the file system's reserve, and CAP_SYS_RESOURCE, which lifts quotas; without CAP_FSETID a write
    takes set-id bits away. So this is cheaper than ``ActAs``: groups stay as they are. One object may be used again,
    and by several threads at once; it does not nest.
    """

    __slots__ = ("_user",)

    def __init__(self, user: User | None) -> None:
        self._user = user

    def _switch(self) -> tuple[_Own, int] | None:
        """Return the credentials of this process and the uid to take; None: there is nothing to do."""
        own, user = _own(), self._user
        if own is None:
            return None
        uid = own.uid if user is None else user.uid
        return None if uid == own.uid == 0 else (own, uid)

    def __enter__(self) -> None:
        found = self._switch()
        if found is None:
            return
        own, uid = found
        syscalls.switch_fsuid(uid)
        if own.lower is not None and uid != 0:
            try:
                own.lower.make()
            except BaseException:
                syscalls.set_fsuid(own.uid)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        found = self._switch()
        if found is None:
            return
        own, uid = found
        was = syscalls.switch_fsuid(own.uid)
        if own.restore is not None:
            own.restore.make()
        if was != uid:
            raise PermissionError(errno.EPERM, f"cannot act as uid {uid}")


@functools.lru_cache(maxsize=1024)
def space_of(user: User | None) -> SpaceOf:
    """Return the user's ``SpaceOf``, of which one is enough."""
    return SpaceOf(user)
