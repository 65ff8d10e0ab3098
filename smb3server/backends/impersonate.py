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
    """

    __slots__ = ("_active", "_gid", "_groups", "_uid", "_user")

    def __init__(self, user: User | None) -> None:
        self._user = user
        self._active = False

    def __enter__(self) -> None:
        user = self._user
        if user is None or os.geteuid() != 0:
            return
        self._uid, self._gid, self._groups = os.geteuid(), os.getegid(), tuple(os.getgroups())
        self._active = True
        try:
            syscalls.set_thread_groups(user.groups)
            syscalls.set_fsgid(user.gid)
            syscalls.set_fsuid(user.uid)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._active:
            return
        self._active = False
        syscalls.set_fsuid(self._uid)
        syscalls.set_fsgid(self._gid)
        syscalls.set_thread_groups(self._groups)
