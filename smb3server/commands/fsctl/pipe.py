"""FSCTLs of named pipes. [MS-SMB2 3.3.5.15.3, 3.3.5.15.4, 3.3.5.15.10]"""

from __future__ import annotations

import struct

from smb3server.commands.fsctl import pipe_turns
from smb3server.commands.fsctl.ioctl import NO_FILE, Control, fsctl
from smb3server.dispatch.request import Pending, Response
from smb3server.rpc.pipes import PIPES, RpcPipe, normalize
from smb3server.state.objects import Open, Pipe
from smb3server.state.share import ShareType
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

_WAIT = struct.Struct("<QIB1x")
_PEEK = struct.Struct("<IIII")
_CONNECTED = 3


def _open(control: Control) -> tuple[Open, Pipe]:
    opened = control.open()
    if opened.pipe is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    return opened, opened.pipe


@fsctl(Fsctl.PIPE_TRANSCEIVE)
def transceive(control: Control) -> Response | Pending:
    """Write a message to the pipe and return the message read from it."""
    opened, pipe = _open(control)

    def respond() -> Response:
        data, more = pipe.read(control.max_output)
        return control.respond(data, NtStatus.BUFFER_OVERFLOW if more else NtStatus.SUCCESS)

    return pipe_turns.exchange(control.request, opened, bytes(control.data), respond)


@fsctl(Fsctl.PIPE_PEEK)
def peek(control: Control) -> Buffer:
    """Return the state of the pipe, without data, which the client can read. [MS-FSCC 2.3.45]"""
    _, pipe = _open(control)
    if not isinstance(pipe, RpcPipe):
        raise StatusError(NtStatus.NOT_SUPPORTED)
    available, messages, first = pipe.peek()
    return _PEEK.pack(_CONNECTED, available, messages, first)


@fsctl(Fsctl.PIPE_WAIT)
def wait(control: Control) -> Buffer:
    """Return if the pipe exists. There is never a wait, as the number of instances is not limited. [MS-FSCC 2.3.49]"""
    if control.file_id != NO_FILE or control.request.tree.share.type is not ShareType.PIPE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    data = control.data
    if len(data) < _WAIT.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    _timeout, length, _specified = _WAIT.unpack_from(data)
    if length & 1 or _WAIT.size + length > len(data):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    name = bytes(data[_WAIT.size : _WAIT.size + length]).decode("utf-16-le", "replace")
    if normalize(name) not in PIPES:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    return b""
