"""The create contexts that ask something about the file: MxAc and QFid. [MS-SMB2 2.2.13.2.5, 2.2.13.2.9]"""

from __future__ import annotations

from smb3server.commands.apple import numbers
from smb3server.commands.create.registry import Described, Kind, register
from smb3server.wire import create_contexts as wire
from smb3server.wire.status import NtStatus


def _maximal_access(found: Described, since: wire.Timewarp | None) -> bytes:
    """Return the maximal access, unless the client knows it: the timestamp that it sent equals the last write time.
    [MS-SMB2 3.3.5.9.5]"""
    known = since is not None and since.timestamp and since.timestamp == found.info.last_write_time
    answer = (NtStatus.NONE_MAPPED, 0) if known else (NtStatus.SUCCESS, found.maximal_access)
    return wire.MAXIMAL_ACCESS_RESPONSE_CODEC.pack(wire.MaximalAccessResponse(*answer))


def _on_disk_id(found: Described, _: bool) -> bytes:
    """Return the numbers of file and volume. [MS-SMB2 3.3.5.9.6]

    A Mac takes it for a number that no later file gets."""
    number = numbers.of(found.opened) if found.opened.tree.apple else found.info.key.inode & 0xFFFFFFFFFFFFFFFF
    answer = wire.OnDiskIdResponse(number, found.volume_serial)
    return wire.ON_DISK_ID_RESPONSE_CODEC.pack(answer)


register(Kind(wire.MAXIMAL_ACCESS, answer=_maximal_access))
register(Kind(wire.QUERY_ON_DISK_ID, answer=_on_disk_id))
