"""Errors of a share as the ``OSError`` that Python users expect: errno, file name, and the server's status by name."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from smb3server.client.protocol.messages import LogonError, UnprovenServer
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost, DecodeError, ProtocolError, ProviderError


class RemoteError(OSError):
    """An operation on a share failed. ``errno``, ``filename`` and ``filename2`` are as for a local file.

    Where Python has a subclass of ``OSError`` for the errno, as ``FileNotFoundError``, the error is one of those, too.
    """

    status = 0
    """The server's NTSTATUS; 0 if the error is not an answer of the server. [MS-ERREF 2.3]"""
    reason = ""
    """More about the error, for people."""

    @property
    def status_name(self) -> str:
        """The name of the status, as STATUS_OBJECT_NAME_NOT_FOUND; empty if there is none.

        A status that has no name in MS-ERREF is "status 0xc0ffee00".
        """
        return _described(self.status)[0] if self.status else ""

    def __str__(self) -> str:
        names = " -> ".join(repr(name) for name in (self.filename, self.filename2) if name is not None)
        more = ": ".join(filter(None, (self.status_name, self.reason)))
        return f"{self.strerror}{f': {names}' if names else ''}{f' ({more})' if more else ''}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.errno, self.filename, self.filename2, self.status, self.reason)


class RemoteFileNotFoundError(RemoteError, FileNotFoundError):
    """No file or folder has this name."""


class RemoteFileExistsError(RemoteError, FileExistsError):
    """A file or folder has this name already."""


class RemotePermissionError(RemoteError, PermissionError):
    """The server refuses the logon or the access."""


class RemoteNotADirectoryError(RemoteError, NotADirectoryError):
    """The name is that of a file."""


class RemoteIsADirectoryError(RemoteError, IsADirectoryError):
    """The name is that of a folder."""


class RemoteTimeoutError(RemoteError, TimeoutError):
    """The server did not answer in time."""


class RemoteConnectionError(RemoteError, ConnectionError):
    """The connection ended, or none could be made."""


_KINDS: dict[int, type[RemoteError]] = {
    errno.ENOENT: RemoteFileNotFoundError,
    errno.EEXIST: RemoteFileExistsError,
    errno.EACCES: RemotePermissionError,
    errno.EPERM: RemotePermissionError,
    errno.ENOTDIR: RemoteNotADirectoryError,
    errno.EISDIR: RemoteIsADirectoryError,
    errno.ETIMEDOUT: RemoteTimeoutError,
    errno.ECONNRESET: RemoteConnectionError,
    errno.ECONNREFUSED: RemoteConnectionError,
    errno.ECONNABORTED: RemoteConnectionError,
}

_ERRNO: dict[int, int] = {
    NtStatus.NO_SUCH_FILE: errno.ENOENT,
    NtStatus.OBJECT_NAME_NOT_FOUND: errno.ENOENT,
    NtStatus.OBJECT_PATH_NOT_FOUND: errno.ENOENT,
    NtStatus.BAD_NETWORK_NAME: errno.ENOENT,
    NtStatus.NOT_FOUND: errno.ENOENT,
    NtStatus.DELETE_PENDING: errno.ENOENT,
    NtStatus.OBJECT_NAME_INVALID: errno.EINVAL,
    NtStatus.OBJECT_PATH_INVALID: errno.EINVAL,
    NtStatus.OBJECT_PATH_SYNTAX_BAD: errno.EINVAL,
    NtStatus.INVALID_PARAMETER: errno.EINVAL,
    NtStatus.NAME_TOO_LONG: errno.ENAMETOOLONG,
    NtStatus.OBJECT_NAME_COLLISION: errno.EEXIST,
    NtStatus.FILE_IS_A_DIRECTORY: errno.EISDIR,
    NtStatus.NOT_A_DIRECTORY: errno.ENOTDIR,
    NtStatus.DIRECTORY_NOT_EMPTY: errno.ENOTEMPTY,
    NtStatus.ACCESS_DENIED: errno.EACCES,
    NtStatus.LOGON_FAILURE: errno.EACCES,
    NtStatus.WRONG_PASSWORD: errno.EACCES,
    NtStatus.NO_SUCH_USER: errno.EACCES,
    NtStatus.PASSWORD_EXPIRED: errno.EACCES,
    NtStatus.ACCOUNT_DISABLED: errno.EACCES,
    NtStatus.ACCOUNT_LOCKED_OUT: errno.EACCES,
    NtStatus.ACCOUNT_RESTRICTION: errno.EACCES,
    NtStatus.LOGON_TYPE_NOT_GRANTED: errno.EACCES,
    NtStatus.PRIVILEGE_NOT_HELD: errno.EPERM,
    NtStatus.CANNOT_DELETE: errno.EPERM,
    NtStatus.SHARING_VIOLATION: errno.EBUSY,
    NtStatus.FILES_OPEN: errno.EBUSY,
    NtStatus.FILE_LOCK_CONFLICT: errno.EAGAIN,
    NtStatus.LOCK_NOT_GRANTED: errno.EAGAIN,
    NtStatus.MEDIA_WRITE_PROTECTED: errno.EROFS,
    NtStatus.DISK_FULL: errno.ENOSPC,
    NtStatus.QUOTA_EXCEEDED: errno.EDQUOT,
    NtStatus.TOO_MANY_OPENED_FILES: errno.ENFILE,
    NtStatus.INSUFFICIENT_RESOURCES: errno.ENOMEM,
    NtStatus.INSUFF_SERVER_RESOURCES: errno.ENOMEM,
    NtStatus.NOT_SAME_DEVICE: errno.EXDEV,
    NtStatus.NOT_SUPPORTED: errno.EOPNOTSUPP,
    NtStatus.NOT_IMPLEMENTED: errno.EOPNOTSUPP,
    NtStatus.INVALID_DEVICE_REQUEST: errno.EOPNOTSUPP,
    NtStatus.FILE_CLOSED: errno.ESTALE,
    NtStatus.STOPPED_ON_SYMLINK: errno.ELOOP,
    NtStatus.PATH_NOT_COVERED: errno.EREMOTE,
    NtStatus.IO_TIMEOUT: errno.ETIMEDOUT,
    NtStatus.USER_SESSION_DELETED: errno.ECONNRESET,
    NtStatus.NETWORK_SESSION_EXPIRED: errno.ECONNRESET,
    NtStatus.NETWORK_NAME_DELETED: errno.ECONNRESET,
    NtStatus.CONNECTION_DISCONNECTED: errno.ECONNRESET,
    NtStatus.CONNECTION_RESET: errno.ECONNRESET,
}
"""Any other status is EIO."""

TROUBLE = (StatusError, ConnectionLost, ProtocolError, DecodeError, ProviderError, LogonError)
"""What the protocol client raises beside ``OSError``."""


def make(
    number: int, path: str | None = None, *, status: int = 0, reason: str = "", to: str | None = None
) -> RemoteError:
    """Return the error for an errno."""
    kind = _KINDS.get(number, RemoteError)
    error = kind(number, os.strerror(number), path, None, to)
    error.status, error.reason = status, reason
    return error


def _rebuild(number: int, path: str | None, to: str | None, status: int, reason: str) -> RemoteError:
    """Make the error again where it was sent to, as another process."""
    return make(number, path, status=status, reason=reason, to=to)


def _described(status: int) -> tuple[str, str]:
    """Return a status's name, and what it means if this program does not know it itself. [MS-ERREF 2.3.1]"""
    name = str(StatusError(status))
    if name.startswith("STATUS_"):
        return name, ""
    from impacket.nt_errors import ERROR_MESSAGES

    named, text = ERROR_MESSAGES.get(status, (name, ""))
    return named, f"0x{status:08x}{f', {text}' if text else ''}" if named != name else ""


def of(error: BaseException, path: str | None = None, to: str | None = None, *, reason: str = "") -> RemoteError:
    """Return an error of the protocol client, or of the network, as a ``RemoteError``.

    ``reason`` is what a status means here, if the caller knows more than its name says.
    """
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, StatusError):
        number = _ERRNO.get(error.status, errno.EIO)
        return make(number, path, status=error.status, reason=reason or _described(error.status)[1], to=to)
    if isinstance(error, TimeoutError):
        return make(errno.ETIMEDOUT, path, to=to)
    if isinstance(error, socket.gaierror):
        return make(errno.EHOSTUNREACH, path, reason=error.strerror or str(error), to=to)
    if isinstance(error, OSError) and error.errno:
        return make(error.errno, path, to=to)
    if isinstance(error, ConnectionLost):
        return make(errno.ECONNRESET, path, reason=str(error), to=to)
    if isinstance(error, LogonError):
        return make(errno.EACCES, path, reason=str(error), to=to)
    if isinstance(error, UnprovenServer):
        return make(errno.EACCES, path, reason=str(error), to=to)
    if isinstance(error, ProviderError):
        return make(errno.ENODEV, path, reason=str(error), to=to)
    return make(errno.EPROTO, path, reason=str(error) or type(error).__name__, to=to)


@contextlib.contextmanager
def named(path: str | None, to: str | None = None) -> Iterator[None]:
    """Raise errors of the block, which uses only the share, as ``RemoteError`` that names the file."""
    try:
        yield
    except RemoteError:
        raise
    except (*TROUBLE, OSError) as error:
        raise of(error, path, to) from error
