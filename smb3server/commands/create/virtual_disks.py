"""CREATE of a shared virtual disk: the suffix, the create context, and what an open of a disk gets. [MS-RSVD 3.2.5.1,
3.2.5.7, MS-SMB2 3.3.5.9.14]"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from smb3server.commands.create.contexts import CreateContexts
from smb3server.commands.create.opening import Opening
from smb3server.commands.create.registry import Described, Kind, register
from smb3server.state.disk_opens import ShareFolder, enter
from smb3server.state.objects import Open
from smb3server.virtual_disks.reading import BadImage
from smb3server.virtual_disks.tunnel import SERVICE_VERSION
from smb3server.wire import svhdx as wire
from smb3server.wire.create import CreateDisposition
from smb3server.wire.file_info import EaEntry
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import Originator, SnapshotType, Status

log = logging.getLogger(__name__)

_SUFFIX = wire.SUFFIX.casefold()
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
                share, path = opened.tree.share.name, "/".join(opened.path)
                log.warning("share %s: %s cannot be used as a disk: %s", share, path, error.strerror)
                raise StatusError(Status.WRONG_FILE_TYPE) from error
            raise
        return opened

    def _enter(self, opened: Open, context: wire.OpenDevice) -> None:
        """Make an open that of a disk, or of the snapshot that the request names."""
        handle = opened.handle
        if handle is None or opened.is_directory:
            raise StatusError(Status.WRONG_FILE_TYPE)
        specifier = _specifier(self.contexts)
        wanted = _specified(specifier.value) if specifier is not None else None
        files = ShareFolder(self.server, self.backend, handle.path[:-1], self.opener.caller, opened.tree.share)
        enter(self.server, opened, handle, files, context, wanted)
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
