"""IOCTL: the table of control codes. [MS-SMB2 3.3.5.15]"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Pending, Response, TreeRequest, handles
from smb3server.state.objects import Open
from smb3server.wire.header import RELATED_FILE_ID, Command, FileId
from smb3server.wire.ioctl import IOCTL_IS_FSCTL, build_ioctl_response, parse_ioctl_request
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

NO_FILE = RELATED_FILE_ID
"""FileId of an IOCTL that is not about a file."""


@dataclass(slots=True)
class Control:
    """One control request. ``data`` is a view of the message: copy what outlives it."""

    request: TreeRequest
    code: int
    file_id: FileId
    data: memoryview
    max_output: int
    """MaxOutputResponse in bytes, at most MaxTransactSize."""

    def open(self) -> Open:
        """Return the open that the request names. Raises ``StatusError``: FILE_CLOSED if there is none."""
        return find_open(self.request, self.file_id)

    def respond(self, output: Buffer = b"", status: int = NtStatus.SUCCESS) -> Response:
        """Return the response with ``output``. Raises ``StatusError``: BUFFER_TOO_SMALL."""
        if len(output) > self.max_output:
            raise StatusError(NtStatus.BUFFER_TOO_SMALL)
        file_id = self.file_id
        if file_id == NO_FILE and self.request.chain.file_id is not None:
            file_id = self.request.chain.file_id
        fixed = build_ioctl_response(self.code, file_id, len(output))
        return Response((fixed, output) if output else (fixed + b"\0",), status)


FsctlHandler = Callable[[Control], "Buffer | Response | Pending"]
"""Returns the output (b"" for none), or a response made with ``Control.respond``."""

_HANDLERS: dict[int, FsctlHandler] = {}


def fsctl(code: int) -> Callable[[FsctlHandler], FsctlHandler]:
    """Register a handler for a control code."""

    def register(handler: FsctlHandler) -> FsctlHandler:
        _HANDLERS[code] = handler
        return handler

    return register


@handles(Command.IOCTL, TreeRequest)
def ioctl(request: TreeRequest) -> Response | Pending:
    """Call the handler of the control code. [MS-SMB2 3.3.5.15]

    Flags other than FSCTL fail with NOT_SUPPORTED and unknown codes with INVALID_DEVICE_REQUEST. As in the section,
    both are checked before the open."""
    body, data = parse_ioctl_request(request.message)
    connection = request.connection
    limit = connection.max_transact_size
    if body.flags != IOCTL_IS_FSCTL:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if body.input_count > limit or body.max_input_response > limit or body.max_output_response > limit:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    handler = _HANDLERS.get(body.ctl_code)
    if handler is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    control = Control(request, body.ctl_code, body.file_id, data, body.max_output_response)
    result = handler(control)
    if isinstance(result, Response | Pending):
        return result
    return control.respond(result)
