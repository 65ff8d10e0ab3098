"""The quotas of users that the kernel keeps for a file system. [quotactl(2)]

ext4 and XFS have them. btrfs has none by user, and neither have most others. The kernel itself enforces them when the
server writes as the user.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct

from smb3server.backends.base import Quota, Quotas, User
from smb3server.backends.local.impersonate import may_act

log = logging.getLogger(__name__)

_SYS_QUOTACTL_FD = 443
_USERS = 0
"""USRQUOTA."""
_GET, _SET, _GET_NEXT = 0x800007, 0x800008, 0x800009
_GET_STATE = ord("X") << 8 | 5
"""Q_XGETQSTAT, which every file system with quotas answers."""
_ACCOUNTED, _ENFORCED = 1, 2
"""FS_QUOTA_UDQ_ACCT, FS_QUOTA_UDQ_ENFD."""
_BLOCK_LIMITS = 1
"""QIF_BLIMITS."""
_BLOCK = 1024
"""Bytes of the unit of limits."""
# struct if_dqblk, and the user of struct if_nextdqblk in what is padding there: hard and soft limit of blocks, bytes in
# use, hard and soft limit of inodes, inodes in use, two times, valid, id
_DQBLK = struct.Struct("<8QII")
_STATE = struct.Struct("<bxH")
_ROOM = 256
_NONE = frozenset((errno.ESRCH, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOTBLK))
"""Errors of file systems, and kernels, without quotas."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint32, ctypes.c_void_p)


def quotactl_fd(descriptor: int, command: int, user: int, buffer: bytes = b"") -> bytes:
    """Call quotactl_fd(2) for quotas of users. ``buffer``: what the call reads. Return what it has written. Raises
    ``OSError``."""
    room = ctypes.create_string_buffer(buffer, _ROOM)
    if _syscall(_SYS_QUOTACTL_FD, descriptor, (command << 8 | _USERS) & 0xFFFFFFFF, user, ctypes.addressof(room)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return room.raw


def find(descriptor: int) -> HostQuotas | None:
    """Return the quotas of the file system of a descriptor. None: it keeps none."""
    try:
        _, flags = _STATE.unpack_from(quotactl_fd(descriptor, _GET_STATE, 0))
    except OSError as error:
        if error.errno not in _NONE:
            log.warning("quotas are not shown: %s", error)
        return None
    return HostQuotas(descriptor, bool(flags & _ENFORCED)) if flags & _ACCOUNTED else None


class HostQuotas(Quotas):
    """The quotas of one file system. See ``Quotas``."""

    def __init__(self, descriptor: int, enforced: bool) -> None:
        """``descriptor``: a directory of the file system. It stays open as long as this object is used."""
        self._descriptor = descriptor
        self.enforced = enforced

    def get(self, uid: int) -> Quota:
        try:
            return _quota(quotactl_fd(self._descriptor, _GET, uid), uid)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOENT):
                # The user has no entry.
                return Quota(uid, 0, 0, 0)
            raise

    def following(self, uid: int) -> Quota | None:
        while uid <= 0xFFFFFFFE:
            try:
                raw = quotactl_fd(self._descriptor, _GET_NEXT, uid)
            except OSError as error:
                if error.errno in (errno.ESRCH, errno.ENOENT):
                    return None
                raise
            found = _quota(raw, _DQBLK.unpack_from(raw)[9])
            if found.used or found.soft or found.hard:
                return found
            uid = found.uid + 1
        return None

    def set(self, uid: int, soft: int, hard: int) -> None:
        blocks = [-(-limit // _BLOCK) for limit in (hard, soft)]
        packed = _DQBLK.pack(*blocks, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS, 0)
        quotactl_fd(self._descriptor, _SET, uid, packed)

    def of_user(self, user: User | None) -> Quota | None:
        uid = user.uid if user is not None and may_act() else os.geteuid()
        try:
            return self.get(uid) if uid and self.enforced else None
        except PermissionError:
            # Without CAP_SYS_ADMIN the kernel tells of the server's own user alone. Others see the whole file system.
            return None


def _quota(raw: bytes, uid: int) -> Quota:
    hard, soft, used, *_ = _DQBLK.unpack_from(raw)
    return Quota(uid, used, soft * _BLOCK, hard * _BLOCK)
