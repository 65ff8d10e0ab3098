"""Space that clients reserve ahead (AllocationSize: MS-FSA 2.1.5.1, 2.1.5.15.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.dispatch.request import Request
from smb3server.process.long_work import Steps
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.state.objects import Open


def reserve(request: Request, opened: Open, size: int) -> Steps | None:
    """Reserve ``size`` bytes for the file of ``opened``, which has less: at once (None), or by the steps returned, on a
    worker.

    DISK_FULL if there is not so much space. What a user has reserved behind the ends of open files is limited: nobody
    takes the disk without writing to it. Beyond that, unless the share has ``strict_allocate``, it is only made sure
    that the space is there now.
    """
    handle, backend = opened.handle, opened.tree.share.backend
    if handle is None or backend is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    info = handle.info()
    usage = opened.usage
    if usage is not None and not opened.tree.share.strict_allocate:
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
