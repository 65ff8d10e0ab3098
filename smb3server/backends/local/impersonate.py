"""Acting as a user for one system call or a few. On Linux credentials belong to threads.

The kernel checks a thread's file-system ids and its effective capabilities. ``setfsuid`` removes the file-system
capabilities from a thread only if the id was 0 before (capabilities(7)). It never removes CAP_SYS_RESOURCE, which lifts
quotas. A server that is not root, or has CAP_SYS_RESOURCE, therefore lowers its effective set itself as well.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from types import TracebackType
from typing import NamedTuple

from smb3server.backends.base import Beyond, User
from smb3server.backends.local import syscalls
from smb3server.backends.local.syscalls import Ids
from smb3server.process import capabilities
from smb3server.process.capabilities import NO_CAPABILITY, Capability, Change, Sets

ACTING = Capability.SETUID | Capability.SETGID
"""The capabilities that acting as another user requires."""
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
"""The capabilities that are lost when the file-system uid changes from 0, and come back with it."""
_NO_USERS = OF_FILES | Capability.SYS_RESOURCE | Capability.SYS_ADMIN
"""The capabilities that would give a user more rights to files, or more space, than are the user's own."""


class _Own(NamedTuple):
    """The credentials of this process when it acts as no other user."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    lower: Change | None
    """Lowers the effective set. None means that ``setfsuid`` is enough."""
    restore: Change | None
    """Restores the effective set. None if and only if ``lower`` is."""
    sets: Sets
    """The sets of the process when it acts as no other user."""


@functools.cache
def _own() -> _Own | None:
    """Return this process's own credentials. None means that it cannot act as other users."""
    sets = capabilities.get()
    if sets.effective & ACTING != ACTING:
        return None
    uid = os.geteuid()
    lower = restore = None
    if uid != 0 or sets.effective & Capability.SYS_RESOURCE:
        lower = Change(Sets(sets.effective & ~_NO_USERS, sets.permitted, sets.inheritable))
        restore = Change(sets)
    return _Own(uid, os.getegid(), tuple(os.getgroups()), lower, restore, sets)


_NOTHING = Beyond.NOTHING
_BEYOND = {
    Beyond.READ: Capability.DAC_READ_SEARCH,
    Beyond.WRITE: Capability.DAC_OVERRIDE | Capability.CHOWN | Capability.FOWNER,
}
"""The capabilities that a user keeps who backs up or restores files. Without CAP_FSETID set-id bits are cleared as for
every user."""


@functools.cache
def _keeping(sets: Sets, beyond: Beyond) -> tuple[Change, Change]:
    """Return what changes the effective set for a user who may do more than the host allows, and what restores it.

    ``sets``: those of the process.
    """
    kept = NO_CAPABILITY
    for one, needed in _BEYOND.items():
        kept |= needed if beyond & one else NO_CAPABILITY
    effective = sets.effective & ~_NO_USERS | sets.effective & kept
    return Change(Sets(effective, sets.permitted, sets.inheritable)), Change(sets)


def may_act() -> bool:
    """Return whether this process may act as other users. That takes CAP_SETUID and CAP_SETGID, not root."""
    return _own() is not None


def reconsider() -> None:
    """Determine anew what this process may do. Call this after its user or its capabilities have changed."""
    _own.cache_clear()


class ActAs:
    """A context manager in which this thread has the user's file-system uid, gid and groups, and no capabilities.

    None means the server's own user, who has no capabilities inside either, except as root. If the server cannot act as
    other users this does nothing, and the kernel checks the server's own rights. Start no thread inside: it would keep
    the user's credentials. Do not nest it.
    """

    __slots__ = ("_own", "_user")

    def __init__(self, user: User | None) -> None:
        own = _own()
        if user is None and own is not None and own.uid != 0:
            user = User(own.uid, own.gid, own.groups)
        self._own = own if user is not None else None
        self._user = user

    def __enter__(self) -> None:
        if _row.kept is not None:
            _row.leave()
        own, user = self._own, self._user
        if own is None or user is None:
            return
        try:
            if user.groups != own.groups:
                syscalls.set_thread_groups(user.groups)
            self._take(user)
            if user.uid != 0:
                if user.beyond:
                    _keeping(own.sets, user.beyond)[0].make()
                elif own.lower is not None:
                    own.lower.make()
        except BaseException:
            self._restore(own, user)
            raise

    def _take(self, user: User) -> None:
        """Take the user's ids. Raises PermissionError if the kernel refuses them."""
        syscalls.set_ids(user.uid, user.gid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._own is not None and self._user is not None:
            self._restore(self._own, self._user)

    @staticmethod
    def _restore(own: _Own, user: User) -> tuple[int, int]:
        """Become the server again, which no kernel refuses. Return uid and gid as they were before."""
        before = syscalls.switch_ids(own.uid, own.gid)
        # After the uid is restored: changing the uid from 0 would remove capabilities again.
        if user.beyond:
            _keeping(own.sets, user.beyond)[1].make()
        elif own.restore is not None:
            own.restore.make()
        if user.groups != own.groups:
            syscalls.set_thread_groups(own.groups)
        return before


class LookAs(ActAs):
    """``ActAs`` for code that changes nothing on disk. It costs less, because only the end shows whether the kernel has
    accepted the user's ids. If not, PermissionError is raised, and what was found is of no use."""

    __slots__ = ()

    def _take(self, user: User) -> None:
        syscalls.switch_ids(user.uid, user.gid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        own, user = self._own, self._user
        if own is not None and user is not None and self._restore(own, user) != (user.uid, user.gid):
            raise PermissionError(errno.EPERM, f"cannot act as uid {user.uid}, gid {user.gid}")


def ids_of(user: User | None) -> Ids | bool:
    """Return what a call of ``syscalls`` needs to look as the user by itself, which costs less than ``LookAs``. False:
    the thread is the user already. True: this takes ``LookAs``."""
    if _row.kept is not None:
        _row.leave()
    own = _own()
    if own is None or (user is None and own.uid == 0):
        return False
    if user is None or own.lower is not None or user.groups != own.groups or user.beyond is not _NOTHING:
        return True
    return user.uid, user.gid, own.uid, own.gid


class SpaceOf:
    """A context manager in which writing to open descriptors takes the user's space, not the server's.

    The right to write was checked when the descriptor was opened. For each new block the kernel checks only the
    file-system uid, which may own the file system's reserve, and CAP_SYS_RESOURCE, which lifts quotas. Without
    CAP_FSETID a write clears set-id bits. This is cheaper than ``ActAs`` because the groups stay as they are. One
    object may be used repeatedly, and by several threads at once. Do not nest it. Within a row (``begin_row``) the
    user's uid stays in force at the end, so that the next write by the same user has nothing to switch.
    """

    __slots__ = ("_user",)

    def __init__(self, user: User | None) -> None:
        self._user = user

    def _switch(self) -> tuple[_Own, int] | None:
        """Return this process's credentials and the uid to take. None means that nothing has to change."""
        own, user = _own(), self._user
        if own is None:
            return None
        uid = own.uid if user is None else user.uid
        return None if uid == own.uid == 0 else (own, uid)

    def __enter__(self) -> None:
        if _row.kept is self:
            return
        if _row.kept is not None:
            _row.leave()
        self._take()
        if _row.under_way:
            _row.kept = self

    def _take(self) -> None:
        found = self._switch()
        if found is None:
            return
        own, uid = found
        syscalls.switch_uid(uid)
        if _row.under_way and syscalls.switch_uid(syscalls.KEEP_ID) != uid:
            # The end of the row is too late to see this.
            raise PermissionError(errno.EPERM, f"cannot act as uid {uid}")
        if own.lower is not None and uid != 0:
            try:
                own.lower.make()
            except BaseException:
                syscalls.switch_uid(own.uid)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _row.kept is not self:
            self.leave()

    def leave(self) -> None:
        """Become the server again. Raises PermissionError if the kernel had refused the user's uid."""
        found = self._switch()
        if found is None:
            return
        own, uid = found
        was = syscalls.switch_uid(own.uid)
        if own.restore is not None:
            own.restore.make()
        if was != uid:
            raise PermissionError(errno.EPERM, f"cannot act as uid {uid}")


class _Row(threading.local):
    """The row of writes that a thread is in."""

    under_way = False
    # Invariant: None unless the row is under way.
    kept: SpaceOf | None = None
    """The one whose user's uid is in force, although no write is."""

    def leave(self) -> None:
        """Become the server again."""
        kept, self.kept = self.kept, None
        if kept is not None:
            kept.leave()


_row = _Row()


def begin_row() -> None:
    """Begin a row of writes in this thread. Switching to a user and back takes longer than a write of some kilobytes.

    Until ``end_row`` the thread may only read and write descriptors that are open already: it would do everything else
    as the user of the last write. An ``ActAs`` alone is safe, as it leaves that user first."""
    _row.under_way = True


def end_row() -> None:
    """End the row of writes, if there is one: the thread is the server again."""
    _row.under_way = False
    _row.leave()


@functools.lru_cache(maxsize=1024)
def space_of(user: User | None) -> SpaceOf:
    """Return the ``SpaceOf`` that all opens of this user share."""
    return SpaceOf(user)
