"""FSCTLs by which programs for NTFS ask for the volume's sizes, and for the number of a file. [MS-FSA 2.1.5.10]"""

from __future__ import annotations

from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.commands.info import presentation
from smb3server.commands.info.fs_levels import full_size
from smb3server.dispatch.lookup import handle_of, store_of
from smb3server.wire import fsctl as wire
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError


@fsctl(Fsctl.GET_NTFS_VOLUME_DATA)
def get_ntfs_volume_data(control: Control) -> bytes:
    """Return serial number and sizes of the volume. It has no master file table. [MS-FSA 2.1.5.10.12]"""
    opened = control.open()
    store = store_of(opened)
    if control.max_output < wire.NTFS_VOLUME_DATA.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    total, _, free, sectors, sector = full_size(opened.tree.share, store)
    return wire.NTFS_VOLUME_DATA.pack(
        wire.NtfsVolumeData(
            volume_serial_number=store.volume_serial & 0xFFFFFFFFFFFFFFFF,
            number_sectors=total * sectors,
            total_clusters=total,
            free_clusters=free,
            bytes_per_sector=sector,
            bytes_per_cluster=sectors * sector,
        )
    )


@fsctl(Fsctl.READ_FILE_USN_DATA)
def read_file_usn_data(control: Control) -> bytes:
    """Return the USN record of the file: its number and its name. There is no journal, so that it has no USN.
    [MS-FSA 2.1.5.10.26, MS-FSCC 2.3.61]"""
    opened = control.open()
    store, handle = store_of(opened), handle_of(opened)
    asked = wire.READ_FILE_USN_DATA.unpack(control.data) if control.data else wire.ReadFileUsnData()
    version = max((known for known in wire.USN_RECORDS if asked[0] <= known <= asked[1]), default=None)
    if version is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    layout, width = wire.USN_RECORDS[version], 8 if version == 2 else 16
    path = handle.path
    name = path[-1].encode("utf-16-le", "surrogatepass") if path else b""
    length = -(-(layout.size + len(name)) // 8) * 8
    if control.max_output < length:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    parent = store.stat(path[:-1]).key.inode if path else handle.key.inode
    record = layout.record(
        record_length=length,
        major_version=version,
        file_reference_number=(handle.key.inode & 0xFFFFFFFFFFFFFFFF).to_bytes(width, "little"),
        parent_file_reference_number=(parent & 0xFFFFFFFFFFFFFFFF).to_bytes(width, "little"),
        file_attributes=presentation.shown(opened, handle.info()).attributes,
        file_name_length=len(name),
        file_name_offset=layout.size,
    )
    return (layout.pack(record) + name).ljust(length, b"\0")
