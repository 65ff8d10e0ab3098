"""Reservation of space by AllocationSize. [MS-FSA 2.1.5.1, 2.1.5.15.1]"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.dispatch.request import Request
from smb3server.process.long_work import Steps
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Open


def reserve(request: Request, opened: Open, size: int) -> Steps | None:
    """Reserve ``size`` bytes for the file of ``opened``, which has less.

    Return None if this is done, or steps that do it, to be taken on a worker thread. The space that a user may reserve
    behind the ends of open files is limited, so that a user cannot fill the disk without writing to it. Beyond the
    limit, unless the share has ``strict_allocate``, this only checks that the space is available now. Raises
    ``StatusError``, DISK_FULL if it is not, and ``OSError``.
    """
    handle, backend = opened.handle, opened.store
    if handle is None or backend is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    info = handle.info()
    usage = opened.usage
    if usage is not None and not opened.tree.share.rules.strict_allocate:
        usage.reserved -= opened.reserved
        opened.reserved = 0
        more = size - info.end_of_file
        if more > request.server.ceilings.room_to_reserve(usage):
            if size - info.allocation_size > backend.volume().available_bytes:
                raise StatusError(NtStatus.DISK_FULL)
            return None
        opened.reserved = more
        usage.reserved += more
    steps = handle.allocating(size)
    if steps is None:
        handle.allocate(size)
    return steps
