"""FSCTLs of smbtorture's own, behind ``Settings.test_fsctls``: they make the server misbehave as a test needs it.

All of it is here, except ``Connection.forced_stall``: break notifications look at that mark, since a connection that is
marked is given up as one is whose peer the network has lost.
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
"""In the body of an IOCTL response."""
_DATA_OFFSET = 2
"""In the body of a READ response."""


def _allow(control: Control, length: int) -> None:
    if not control.request.server.settings.test_fsctls:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if len(control.data) != length:
        raise StatusError(NtStatus.INVALID_PARAMETER)


def _marks_as_stalled(request: Request) -> bool:
    """Whether an IOCTL without a session is FORCE_UNACKED_TIMEOUT, which smbtorture sends so."""
    if not request.server.settings.test_fsctls:
        return False
    return IOCTL_REQUEST.unpack(request.body).ctl_code == FORCE_UNACKED_TIMEOUT


RUNS_WITHOUT_SESSION[Command.IOCTL] = _marks_as_stalled


@fsctl(FORCE_UNACKED_TIMEOUT)
def force_unacked_timeout(control: Control) -> bytes:
    """From now on this connection counts as one whose peer acknowledges nothing."""
    _allow(control, 0)
    control.request.connection.forced_stall = True
    return b""


@fsctl(IOCTL_RESPONSE_BODY_PADDING8)
def ioctl_padding(control: Control) -> Response:
    """As much output as wanted, all of it bytes of value 8, behind eight bytes of padding."""
    _allow(control, 0)
    response = control.respond(b"\x08" * control.max_output)
    fixed = bytearray(response.segments[0])
    (offset,) = struct.unpack_from("<I", fixed, _OUTPUT_OFFSET)
    struct.pack_into("<I", fixed, _OUTPUT_OFFSET, offset + len(_PADDING))
    output = response.segments[1] if len(response.segments) > 1 else b""
    return Response((bytes(fixed[: IOCTL_RESPONSE.size]) + _PADDING, output))


@fsctl(READ_RESPONSE_BODY_PADDING8)
def read_padding(control: Control) -> bytes:
    """All READ responses of this connection get eight bytes of padding."""
    _allow(control, 0)
    host = control.request.host
    host.handlers = {**host.handlers, Command.READ: _padded_read}
    return b""


def _padded_read(request: TreeRequest) -> Response | Pending:
    """READ, with eight bytes more before the data."""
    result = read(request)
    if not isinstance(result, Response) or len(result.segments) < 2:
        return result
    fixed = bytearray(result.segments[0])
    fixed[_DATA_OFFSET] += len(_PADDING)
    result.segments = [bytes(fixed) + _PADDING, *result.segments[1:]]
    return result


@fsctl(FSP_ASYNC_SLEEP)
def async_sleep(control: Control) -> Pending:
    """Work on the open for that many milliseconds; FILE_CLOSED if its file was closed under it meanwhile."""
    _allow(control, 1)
    entry = control.open()
    handle = entry.handle
    entry.begin_io()
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
        entry.end_io()

    asyncio.get_running_loop().call_later(control.data[0] / 1000, done)
    return pending
