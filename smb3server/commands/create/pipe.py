"""Handles CREATE on IPC$, which opens named pipes. [MS-SMB2 3.3.5.9]"""

from __future__ import annotations

from smb3server.access import masks
from smb3server.dispatch.request import Response, TreeRequest
from smb3server.rpc.pipes import open_pipe
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access, CreateAction, CreateRequest, CreateResponse, pack_response
from smb3server.wire.oplock_break import OplockLevel

_READ_WRITE = masks.FILE_GENERIC_READ | masks.FILE_GENERIC_WRITE
"""The access that MAXIMUM_ALLOWED grants to a pipe."""


def create_on_pipe(request: TreeRequest, body: CreateRequest, name: str) -> Response:
    """Open a named pipe. Raises OBJECT_NAME_NOT_FOUND if there is no such pipe."""
    opens = request.server.opens
    granted = masks.map_generic(body.desired_access) & ~int(Access.MAXIMUM_ALLOWED)
    if body.desired_access & Access.MAXIMUM_ALLOWED:
        granted = _READ_WRITE
    opened = Open(
        opens.new_file_id(),
        request.session,
        request.tree,
        (name,),
        store=None,
        pipe=open_pipe(request, name),
        granted_access=granted,
        maximal_access=request.tree.maximal_access,
        share_access=body.share_access,
    )
    opens.add(opened)
    response = pack_response(
        CreateResponse(
            oplock_level=OplockLevel.NONE,
            create_action=CreateAction.OPENED,
            allocation_size=4096,
            file_attributes=attr.NORMAL,
            persistent=opened.file_id[0],
            volatile=opened.file_id[1],
        )
    )
    return Response([response], file_id=opened.file_id)
