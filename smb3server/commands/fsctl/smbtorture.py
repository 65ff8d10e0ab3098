"""Private FSCTLs of smbtorture, which make the server misbehave for a test. ``Settings.test_fsctls`` enables them.

Belongs here: everything that only smbtorture needs, except ``Connection.forced_stall``. Break notifications read that
mark and treat the connection as one whose peer is lost.
"""

from __future__ import annotations

import asyncio
import struct

from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.commands.read import read
from smb3server.dispatch.checks import RUNS_WITHOUT_SESSION
from smb3server.dispatch.request import Interim, Pending, Request, Response, TreeRequest
from smb3server.dispatch.waiting import answer
from smb3server.wire.header import Command
from smb3server.wire.ioctl import IOCTL_REQUEST, IOCTL_RESPONSE
from smb3server.wire.status import NtStatus, StatusError

FORCE_UNACKED_TIMEOUT = 0x83848003
IOCTL_RESPONSE_BODY_PADDING8 = 0x83848013
READ_RESPONSE_BODY_PADDING8 = 0x83848023
FSP_ASYNC_SLEEP = 0x83848043
_PADDING = bytes(8)
_OUTPUT_OFFSET = 32
"""Position of OutputOffset in the body of an IOCTL response."""
_DATA_OFFSET = 2
"""Position of DataOffset in the body of a READ response."""


def _allow(control: Control, length: int) -> None:
    if not control.request.server.settings.test_fsctls:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if len(control.data) != length:
        raise StatusError(NtStatus.INVALID_PARAMETER)


def _marks_as_stalled(request: Request) -> bool:
    """Return whether an IOCTL is FORCE_UNACKED_TIMEOUT, which smbtorture sends without a session."""
    if not request.server.settings.test_fsctls:
        return False
    return IOCTL_REQUEST.unpack(request.body).ctl_code == FORCE_UNACKED_TIMEOUT


RUNS_WITHOUT_SESSION[Command.IOCTL] = _marks_as_stalled


@fsctl(FORCE_UNACKED_TIMEOUT)
def force_unacked_timeout(control: Control) -> bytes:
    """Treat this connection as one whose peer acknowledges nothing."""
    _allow(control, 0)
    control.request.connection.forced_stall = True
    return b""


@fsctl(IOCTL_RESPONSE_BODY_PADDING8)
def ioctl_padding(control: Control) -> Response:
    """Return MaxOutputResponse bytes of value 8 after eight bytes of padding."""
    _allow(control, 0)
    response = control.respond(b"\x08" * control.max_output)
    fixed = bytearray(response.segments[0])
    (offset,) = struct.unpack_from("<I", fixed, _OUTPUT_OFFSET)
    struct.pack_into("<I", fixed, _OUTPUT_OFFSET, offset + len(_PADDING))
    output = response.segments[1] if len(response.segments) > 1 else b""
    return Response((bytes(fixed[: IOCTL_RESPONSE.size]) + _PADDING, output))


@fsctl(READ_RESPONSE_BODY_PADDING8)
def read_padding(control: Control) -> bytes:
    """Add eight bytes of padding to all later READ responses of this connection."""
    _allow(control, 0)
    host = control.request.host
    host.handlers = {**host.handlers, Command.READ: _padded_read}
    return b""


def _padded_read(request: TreeRequest) -> Response | Pending:
    """Handle READ and add eight bytes of padding before the data."""
    result = read(request)
    if not isinstance(result, Response) or len(result.segments) < 2:
        return result
    fixed = bytearray(result.segments[0])
    fixed[_DATA_OFFSET] += len(_PADDING)
    result.segments = [bytes(fixed) + _PADDING, *result.segments[1:]]
    return result


@fsctl(FSP_ASYNC_SLEEP)
def async_sleep(control: Control) -> Pending:
    """Use the open for the given number of milliseconds. Fail with FILE_CLOSED if its file was closed meanwhile."""
    _allow(control, 1)
    opened = control.open()
    handle = opened.handle
    opened.begin_io()
    pending = control.request.pend(Interim.AT_ONCE)

    def work() -> Response:
        try:
            if handle is None:
                raise StatusError(NtStatus.FILE_CLOSED)
            handle.info()
        except OSError:
            raise StatusError(NtStatus.FILE_CLOSED) from None
        return control.respond()

    def done() -> None:
        answer(pending, work)
        opened.end_io()

    asyncio.get_running_loop().call_later(control.data[0] / 1000, done)
    return pending
