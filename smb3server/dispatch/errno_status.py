"""The only table that maps errors of system calls to statuses."""

from __future__ import annotations

import errno

from smb3server.backends.base import PathNotFound
from smb3server.wire.status import NtStatus, StatusError

_STATUS_OF_ERRNO: dict[int, NtStatus] = {
    errno.EPERM: NtStatus.ACCESS_DENIED,
    errno.ENOENT: NtStatus.OBJECT_NAME_NOT_FOUND,
    errno.ESRCH: NtStatus.INVALID_PARAMETER,
    errno.EIO: NtStatus.IO_DEVICE_ERROR,
    errno.EUCLEAN: NtStatus.FILE_CORRUPT_ERROR,
    errno.EBADMSG: NtStatus.FILE_CORRUPT_ERROR,
    errno.EREMOTEIO: NtStatus.IO_DEVICE_ERROR,
    errno.ENOTCONN: NtStatus.IO_DEVICE_ERROR,
    errno.ENXIO: NtStatus.NO_SUCH_DEVICE,
    errno.ENODEV: NtStatus.NO_SUCH_DEVICE,
    errno.EBADF: NtStatus.FILE_CLOSED,
    errno.EAGAIN: NtStatus.FILE_LOCK_CONFLICT,
    errno.ENOMEM: NtStatus.INSUFFICIENT_RESOURCES,
    errno.EACCES: NtStatus.ACCESS_DENIED,
    errno.EBUSY: NtStatus.SHARING_VIOLATION,
    errno.ETXTBSY: NtStatus.SHARING_VIOLATION,
    errno.EEXIST: NtStatus.OBJECT_NAME_COLLISION,
    errno.EXDEV: NtStatus.NOT_SAME_DEVICE,
    errno.ENOTDIR: NtStatus.NOT_A_DIRECTORY,
    errno.EISDIR: NtStatus.FILE_IS_A_DIRECTORY,
    errno.EINVAL: NtStatus.INVALID_PARAMETER,
    errno.ENFILE: NtStatus.TOO_MANY_OPENED_FILES,
    errno.EMFILE: NtStatus.TOO_MANY_OPENED_FILES,
    errno.EFBIG: NtStatus.DISK_FULL,
    errno.EOVERFLOW: NtStatus.ALLOTTED_SPACE_EXCEEDED,
    errno.ENOSPC: NtStatus.DISK_FULL,
    errno.EDQUOT: NtStatus.DISK_FULL,
    errno.EROFS: NtStatus.MEDIA_WRITE_PROTECTED,
    errno.EMLINK: NtStatus.TOO_MANY_LINKS,
    errno.ENAMETOOLONG: NtStatus.OBJECT_NAME_INVALID,
    errno.EILSEQ: NtStatus.OBJECT_NAME_INVALID,
    errno.ENOSYS: NtStatus.NOT_SUPPORTED,
    errno.EOPNOTSUPP: NtStatus.NOT_SUPPORTED,
    errno.ENOTEMPTY: NtStatus.DIRECTORY_NOT_EMPTY,
    errno.ELOOP: NtStatus.OBJECT_PATH_NOT_FOUND,
    errno.ENODATA: NtStatus.NOT_FOUND,
    errno.ETIMEDOUT: NtStatus.IO_TIMEOUT,
    errno.ECANCELED: NtStatus.CANCELLED,
    errno.ESTALE: NtStatus.FILE_CLOSED,
}

STORAGE_FAILS = frozenset((errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EREMOTEIO, errno.ENOTCONN, errno.ENXIO))
"""Errors that say nothing of the request, but of the storage: a disk, its file system, or the program behind FUSE."""
NO_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))


def status_of(error: OSError) -> NtStatus:
    """Return the status for an error of a backend. It is UNSUCCESSFUL for an errno that is not in the table."""
    if isinstance(error, PathNotFound):
        return NtStatus.OBJECT_PATH_NOT_FOUND
    return _STATUS_OF_ERRNO.get(error.errno or 0, NtStatus.UNSUCCESSFUL)


def as_status_error(error: OSError) -> StatusError:
    """Return ``status_of(error)`` as an exception."""
    return StatusError(status_of(error))
