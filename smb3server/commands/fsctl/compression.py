"""FSCTL_GET_COMPRESSION and FSCTL_SET_COMPRESSION. [MS-FSA 2.1.5.10.9, 2.1.5.10.29]"""

from __future__ import annotations

import struct

from smb3server.access import required
from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.commands.info.set_info import report
from smb3server.dispatch.lookup import handle_of
from smb3server.wire import attributes as attr
from smb3server.wire.change_notify import NotifyFilter
from smb3server.wire.fsctl import CompressionFormat
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError

_COMPRESSION = struct.Struct("<H")


@fsctl(Fsctl.GET_COMPRESSION)
def get_compression(control: Control) -> bytes:
    """Return whether the file is compressed. The format is reported as LZNT1, which clients know; the file system
    chooses the real one. [MS-FSA 2.1.5.10.9]"""
    opened = control.open()
    compressed = handle_of(opened).info().attributes & attr.COMPRESSED
    if control.max_output < _COMPRESSION.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return _COMPRESSION.pack(CompressionFormat.LZNT1 if compressed else CompressionFormat.NONE)


@fsctl(Fsctl.SET_COMPRESSION)
def set_compression(control: Control) -> bytes:
    """Compress the file or not. [MS-FSA 2.1.5.10.29]"""
    opened = control.open()
    data = control.data
    handle = handle_of(opened)
    if len(data) < _COMPRESSION.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    required.check(opened.granted_access, required.FSCTL[control.code])
    (requested,) = _COMPRESSION.unpack_from(data)
    if requested not in tuple(CompressionFormat):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    backend = opened.store
    if backend is None or not backend.supports_compression:
        if requested != CompressionFormat.NONE:
            raise StatusError(NtStatus.NOT_SUPPORTED)
        return b""
    handle.set_compressed(requested != CompressionFormat.NONE)
    report(opened, NotifyFilter.ATTRIBUTES)
    return b""
