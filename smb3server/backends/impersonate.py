"""Acting as a user for the length of one system call or few (Linux: credentials belong to threads)."""

from __future__ import annotations

import os
from types import TracebackType

from smb3server.backends import syscalls
from smb3server.backends.base import User


class ActAs:
    """Context manager: file-system uid, gid and groups of this thread are the user's inside.

    Does nothing for None, and when the server is not root (then the kernel checks the server's own rights, and nothing
    can be done about it). CAP_DAC_OVERRIDE and its like leave the effective set with the fsuid, CAP_SYS_ADMIN does not.
    No thread may be started inside: it would keep the user's credentials. Does not nest.
    """

    __slots__ = ("_groups", "_user")

    def __init__(self, user: User | None) -> None:
        self._user = user if user is not None and os.geteuid() == 0 else None

    def __enter__(self) -> None:
        user = self._user
        if user is None:
            return
        self._groups = tuple(os.getgroups())
        try:
            if user.groups != self._groups:
                syscalls.set_thread_groups(user.groups)
            syscalls.set_fsgid(user.gid)
            syscalls.set_fsuid(user.uid)
        except BaseException:
            self._restore(user)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._user is not None:
            self._restore(self._user)

    def _restore(self, user: User) -> None:
        syscalls.set_fsuid(os.geteuid())
        syscalls.set_fsgid(os.getegid())
        if user.groups != self._groups:
            syscalls.set_thread_groups(self._groups)
