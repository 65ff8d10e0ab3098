"""CREATE of a shared virtual disk: the suffix, the create context, and what an open of a disk gets. [MS-RSVD 3.2.5.1,
3.2.5.7, MS-SMB2 3.3.5.9.14]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from smb3server.access import decide, masks, tokens
from smb3server.access.caller import Caller
from smb3server.backends.base import Backend, Disposition, Handle, OpenRequest, Path
from smb3server.backends.base import Described as Seen
from smb3server.commands.create.contexts import CreateContexts
from smb3server.commands.create.opening import Opening
from smb3server.commands.create.registry import Described, Kind, register
from smb3server.state.objects import Open
from smb3server.state.server_state import ServerState
from smb3server.virtual_disks.device import NO_INITIATOR, DeviceOpen
from smb3server.virtual_disks.disk import open_chain
from smb3server.virtual_disks.handle import DiskHandle
from smb3server.virtual_disks.snapshots import found_in
from smb3server.virtual_disks.tunnel import SERVICE_VERSION
from smb3server.virtual_disks.vhdx import BadImage
from smb3server.wire import svhdx as wire
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.file_info import EaEntry
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import Originator, SnapshotType, Status

_SUFFIX = wire.SUFFIX.casefold()
_UNBUFFERED = int(CreateOptions.NO_INTERMEDIATE_BUFFERING)
_READ, _WRITE, _DELETE = int(Access.READ_DATA), int(Access.WRITE_DATA), int(Access.DELETE)
_V2_SIZE = wire.OPEN_DEVICE.size + wire.PROPERTIES.size
_SPECIFIER_SIZE = 4 + wire.OF_SNAPSHOT.size


def without_suffix(name: str, asked: CreateContexts) -> tuple[str, bool]:
    """Return the name of the file, and whether a CREATE on a share with virtual disks is about the disk in it.

    Without a context of a disk the suffix is the name of a stream, as everywhere else."""
    if not name.casefold().endswith(_SUFFIX):
        return name, False
    is_disk = wire.OPEN_DEVICE_CONTEXT in asked.others or _specifier(asked) is not None
    return (name[: -len(_SUFFIX)], is_disk) if is_disk or asked.reconnect is not None else (name, False)


def _specifier(asked: CreateContexts) -> EaEntry | None:
    for entry in asked.eas or ():
        if entry.name.upper() == wire.TARGET_SPECIFIER_EA and len(entry.value) >= _SPECIFIER_SIZE:
            return entry
    return None


class ShareFolder:
    """The folder of a disk, with the rights of the user who opens the disk (``disk.Files``)."""

    def __init__(self, server: ServerState, backend: Backend, folder: Path, caller: Caller) -> None:
        self._server, self._backend, self._folder, self._caller = server, backend, folder, caller

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

    def _check(self, path: Path, found: Seen, needed: int) -> None:
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


@dataclass(slots=True)
class DiskOpening(Opening):
    """A CREATE of a disk."""

    def attempt(self) -> Open:
        """Open the file as ``Opening.attempt`` does, and the disk in it. Raises also WRONG_FILE_TYPE and VHD_SHARED."""
        if self.body.create_disposition not in (CreateDisposition.OPEN, CreateDisposition.OPEN_IF):
            raise StatusError(NtStatus.INVALID_PARAMETER)
        # No request makes a disk.
        self.body = self.body._replace(create_disposition=CreateDisposition.OPEN)
        data = self.contexts.others.get(wire.OPEN_DEVICE_CONTEXT)
        context = _checked(data) if data is not None else wire.OpenDevice()
        opened = Opening.attempt(self)
        try:
            if context.originator_flags == Originator.VHDMP:
                if opened.handle is not None and opened.handle.key in self.server.virtual_disks.by_key:
                    raise StatusError(Status.VHD_SHARED)
            else:
                self._enter(opened, context)
        except BaseException as error:
            self.server.opens.close(opened)
            if isinstance(error, BadImage):
                raise StatusError(Status.WRONG_FILE_TYPE) from error
            raise
        return opened

    def _enter(self, opened: Open, context: wire.OpenDevice) -> None:
        """Make an open that of a disk, or of the snapshot that the request names."""
        handle, disks = opened.handle, self.server.virtual_disks
        if handle is None or opened.is_directory:
            raise StatusError(Status.WRONG_FILE_TYPE)
        path = handle.path
        files = ShareFolder(self.server, self.backend, path[:-1], self.opener.caller)
        write = bool(opened.granted_access & masks.WRITES_DATA)
        initiator = context.initiator_id if context.has_initiator_id else NO_INITIATOR
        disk = disks.enter(handle.key, path[-1], files, write, initiator)
        leave = partial(disks.leave, disk, initiator)
        try:
            snapshot = None
            if (specifier := _specifier(self.contexts)) is not None:
                wanted = _specified(specifier.value)
                image = found_in(disk, wanted.snapshot_id, wanted.snapshot_type).image
                snapshot = open_chain(files, image, write=False)
            unbuffered = bool(opened.create_options & _UNBUFFERED)
            device = DeviceOpen(disk, context, files, unbuffered, write, snapshot)
        except BaseException:
            leave()
            raise
        opened.virtual_disk = device
        opened.use_handle(DiskHandle(handle, device, leave))
        self.info = opened.handle.info() if opened.handle is not None else None


def _checked(data: bytes) -> wire.OpenDevice:
    """Decode the context of a request. Raises ``StatusError``. [MS-RSVD 3.2.5.1]"""
    if len(data) < wire.OPEN_DEVICE.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    context = wire.OPEN_DEVICE.unpack(data)
    if context.version == 2 and len(data) < _V2_SIZE:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    if context.version not in (1, 2) or context.has_initiator_id > 1:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if context.host_name_length > wire.MAX_NAME:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return context


def _specified(value: bytes) -> wire.OfSnapshot:
    """Decode RSVD_BLOCK_DEVICE_TARGET_SPECIFIER. Raises INVALID_PARAMETER. [MS-RSVD 3.2.5.7]"""
    wanted = wire.OF_SNAPSHOT.unpack(value, 4)
    if value[:4] != bytes(4) or wanted.snapshot_type not in (SnapshotType.VM, SnapshotType.WRITEABLE):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return wanted


def _answer(found: Described, data: bytes) -> bytes | None:
    """Return the context of the response: that of the request, and in version 2 the properties of the disk."""
    device = found.opened.virtual_disk
    if device is None:
        return None
    answer = wire.OPEN_DEVICE.pack(device.context)
    if device.context.version == 2:
        metadata = device.disk.active.metadata
        properties = wire.Properties(
            1, SERVICE_VERSION, metadata.sector_size, metadata.physical_sector_size, device.size
        )
        answer += wire.PROPERTIES.pack(properties)
    return answer


register(Kind(wire.OPEN_DEVICE_CONTEXT, since=Dialect.SMB_3_0_2, parse=bytes, answer=_answer))
