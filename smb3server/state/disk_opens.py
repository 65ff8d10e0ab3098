"""Opens of shared virtual disks: what an open of a file gets that makes it one of the disk in it. [MS-RSVD 3.2.5.1]

CREATE makes them, and a server that starts again restores those that are persistent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from smb3server.access import decide, masks, tokens
from smb3server.backends.base import Backend, Described, Disposition, Handle, OpenRequest, Path
from smb3server.virtual_disks import claims
from smb3server.virtual_disks.device import DeviceOpen, initiator_of
from smb3server.virtual_disks.disk import open_chain
from smb3server.virtual_disks.handle import DiskHandle
from smb3server.virtual_disks.snapshots import found_in
from smb3server.wire import svhdx as wire
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.access.caller import Caller
    from smb3server.state.objects import Open
    from smb3server.state.server_state import ServerState
    from smb3server.state.share import Share

_UNBUFFERED = int(CreateOptions.NO_INTERMEDIATE_BUFFERING)
_READ, _WRITE, _DELETE = int(Access.READ_DATA), int(Access.WRITE_DATA), int(Access.DELETE)


class ShareFolder:
    """The folder of a disk, with the rights of the user who opens the disk (``disk.Files``)."""

    def __init__(self, server: ServerState, backend: Backend, folder: Path, caller: Caller, share: Share) -> None:
        self._server, self._backend, self._folder, self._caller = server, backend, folder, caller
        self._share = share

    def open(self, name: str, write: bool) -> Handle:
        path = (*self._folder, name)
        request = OpenRequest(path, read=True, write=write, directory=False, user=self._caller.user)
        handle, found, _, _ = self._backend.open_described(request)
        try:
            needed = _READ | _WRITE if write else _READ
            self._check(path, found, needed)
        except BaseException:
            handle.close()
            raise
        return handle

    def claim(self, handle: Handle, write: bool = True) -> None:
        # A node that is paused keeps its claims: in a cluster the fence sees to it that it does not write.
        if self._server.loss_of(self._share) is None:
            claims.claim(handle, write)

    def _check(self, path: Path, found: Described, needed: int) -> None:
        if needed & ~self._caller.rights_on(self._backend, path, found):
            raise StatusError(NtStatus.ACCESS_DENIED)

    def create(self, name: str) -> Handle:
        caller = self._caller
        folder, found, _, _ = self._backend.open_described(OpenRequest(self._folder, directory=True, user=caller.user))
        try:
            decide.check_addition(caller.rights_in(found), False)
            descriptor = tokens.new_descriptor(found.descriptor, None, False, caller.token, caller.user)
            request = OpenRequest(
                (*self._folder, name),
                disposition=Disposition.CREATE,
                read=True,
                write=True,
                directory=False,
                security_descriptor=descriptor,
                user=caller.user,
            )
            return self._backend.create_in(folder, request).handle
        finally:
            folder.close()

    def remove(self, name: str) -> None:
        path = (*self._folder, name)
        request = OpenRequest(path, directory=False, open_reparse_point=True, user=self._caller.user)
        handle, found, _, _ = self._backend.open_described(request)
        try:
            self._check(path, found, _DELETE)
            file = self._server.file_table.find(handle.key)
            if file is not None and file.opens:
                raise StatusError(NtStatus.SHARING_VIOLATION)
            handle.unlink()
        finally:
            handle.close()


def enter(
    server: ServerState,
    opened: Open,
    handle: Handle,
    files: ShareFolder,
    context: wire.OpenDevice,
    specifier: wire.OfSnapshot | None,
) -> DeviceOpen:
    """Make an open that of a disk, or of the snapshot that ``specifier`` names. ``handle``: the file, which the open
    has already. Raises ``OSError``, ``StatusError``. The open is that of a file still then."""
    disks, path = server.virtual_disks, handle.path
    write = bool(opened.granted_access & masks.WRITES_DATA)
    initiator = initiator_of(context)
    disk = disks.enter(handle.key, path[-1], files, write, initiator)
    leave = partial(disks.leave, disk, initiator, partial(server.has_lost, opened.tree.share))
    try:
        snapshot = None
        if specifier is not None:
            image = found_in(disk, specifier.snapshot_id, specifier.snapshot_type).image
            snapshot = open_chain(files, image, write=False)
        unbuffered = bool(opened.create_options & _UNBUFFERED)
        device = DeviceOpen(disk, context, files, unbuffered, write, snapshot)
    except BaseException:
        leave()
        raise
    device.specifier = specifier
    device.outlives_the_server = partial(_is_persistent, opened)
    opened.virtual_disk = device
    opened.use_handle(DiskHandle(handle, device, leave))
    return device


def _is_persistent(opened: Open) -> bool:
    return opened.durable is not None and opened.durable.persistent
