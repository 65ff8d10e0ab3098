"""FSCTL_SRV_ENUMERATE_SNAPSHOTS: the previous versions of a share. [MS-SMB2 3.3.5.15.1]"""

from __future__ import annotations

from smb3server.backends.snapshot_names import token
from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.wire import fsctl as wire
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError

_SMALLEST = 16
"""Bytes of the smallest answer, and of the smallest buffer for one."""


@fsctl(Fsctl.SRV_ENUMERATE_SNAPSHOTS)
def enumerate_snapshots(control: Control) -> bytes:
    """Return the times of the share's snapshots, the newest first, or only their number and size if they do not fit."""
    opened = control.open()
    if control.max_output < _SMALLEST:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    snapshots = opened.tree.share.snapshots
    times = snapshots.times() if snapshots is not None else []
    names = b"".join(f"{token(seconds)}\0".encode("utf-16-le") for seconds in times)
    if names:
        names += bytes(2)
    fits = wire.SNAPSHOT_ARRAY.size + len(names) <= control.max_output
    header = wire.SnapshotArray(len(times), len(times) if fits else 0, len(names))
    output = wire.SNAPSHOT_ARRAY.pack(header) + (names if fits else b"")
    return output.ljust(_SMALLEST, b"\0")
