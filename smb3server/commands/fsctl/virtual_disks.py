"""The FSCTLs of shared virtual disks. [MS-RSVD 3.2.5.5, 3.2.5.6]"""

from __future__ import annotations

from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.dispatch.errno_status import status_of
from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.request import Pending, Response
from smb3server.process.long_work import Steps
from smb3server.virtual_disks import meta, tunnel
from smb3server.virtual_disks.tunnel import Call, DiskError, Slow
from smb3server.wire import svhdx as wire
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError

__all__ = ["meta"]
_SNAPSHOTS_SUPPORTED = 7
_NONE, _FILE_SHARED, _SHARED = 0, 1, 3
"""SharedVirtualDiskHandleState. [MS-RSVD 2.2.4.16]"""


@fsctl(Fsctl.QUERY_SHARED_VIRTUAL_DISK_SUPPORT)
def query_support(control: Control) -> bytes:
    """Return what the server can do, and whether the file is open as a disk. [MS-RSVD 3.2.5.6]"""
    opened = control.open()
    if not opened.tree.share.rules.shared_virtual_disks:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if control.max_output < wire.SUPPORT.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    state = _NONE
    if opened.virtual_disk is not None:
        state = _SHARED
    elif opened.handle is not None and opened.handle.key in control.request.server.virtual_disks.by_key:
        state = _FILE_SHARED
    return wire.SUPPORT.pack(wire.Support(_SNAPSHOTS_SUPPORTED, state))


@fsctl(Fsctl.SVHDX_SYNC_TUNNEL_REQUEST)
@fsctl(Fsctl.SVHDX_ASYNC_TUNNEL_REQUEST)
def tunnel_request(control: Control) -> bytes | Response | Pending:
    """Do a tunnel operation on the disk of the open. [MS-RSVD 3.2.5.5]"""
    opened = control.open()
    if not opened.tree.share.rules.shared_virtual_disks:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if opened.virtual_disk is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    device = opened.virtual_disk
    call = tunnel.parse(device, bytes(control.data), control.max_output)
    changes = device.disk.reservations.changes
    try:
        result = tunnel.run(call)
    except (DiskError, OSError) as error:
        return _failure(call, error)
    if device.disk.reservations.changes != changes:
        control.request.server.opens.store_all(opened, undo=_keep)
    if isinstance(result, bytes):
        return call.respond(result)
    work = _Work(call, result)
    return run_steps(control.request, opened, work.steps(), lambda: control.respond(work.response()))


def _keep() -> None:
    """Leave the reservations as they are in memory if they could not be stored: the request fails, and they are stored
    later. By then others may have changed them."""


def _failure(call: Call, error: DiskError | OSError) -> bytes:
    """Return the response of an operation that the disk has failed."""
    if isinstance(error, DiskError):
        return call.respond(error.body, error.status)
    return call.respond(status=status_of(error))


class _Work:
    """An operation that takes steps on a worker thread."""

    def __init__(self, call: Call, slow: Slow) -> None:
        self._call, self._slow = call, slow
        self._answer = b""

    def steps(self) -> Steps:
        """Take the steps. Errors of the disk become the answer."""
        try:
            body = yield from self._slow
        except (DiskError, OSError) as error:
            self._answer = _failure(self._call, error)
        else:
            self._answer = self._call.respond(body)

    def response(self) -> bytes:
        """Return the answer, when all steps are taken."""
        return self._answer
