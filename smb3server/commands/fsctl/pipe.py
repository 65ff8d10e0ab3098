"""FSCTLs of named pipes, and calls through them. [MS-SMB2 3.3.5.15.3, 3.3.5.15.4, 3.3.5.15.10]

Slow calls, whose arguments take long to decode or which query the user database of the host, run on a worker, one at a
time per pipe.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

from smb3server.commands.fsctl.ioctl import NO_FILE, Control, fsctl
from smb3server.dispatch import waiting
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest
from smb3server.process.long_work import Steps
from smb3server.rpc.pipes import PIPES, RpcPipe, normalize
from smb3server.state.objects import Open, Pipe
from smb3server.state.share import ShareType
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

_WAIT = struct.Struct("<QIB1x")
_PEEK = struct.Struct("<IIII")
_CONNECTED = 3


def pipe_of(opened: Open) -> Pipe:
    """Return the pipe of an open. Raises ``StatusError``: PIPE_DISCONNECTED if it is closed."""
    pipe = opened.pipe
    if pipe is None:
        raise StatusError(NtStatus.PIPE_DISCONNECTED)
    return pipe


def write(request: TreeRequest, opened: Open, data: bytes, respond: Callable[[], Response]) -> Response | Pending:
    """Write ``data``, then answer with the result of ``respond``. If ``data`` is slow to process, or earlier data is
    not written yet, a worker writes it."""
    pipe = pipe_of(opened)
    if not pipe.turn.locked() and not pipe.is_slow(len(data)):
        pipe.write(data)
        return respond()
    return waiting.run(request, _write(request, opened, pipe, data, respond))


def exchange(request: TreeRequest, opened: Open, data: bytes, respond: Callable[[], Response]) -> Response | Pending:
    """Do ``write``, and wait for the answer if it comes later."""
    pipe = pipe_of(opened)
    if pipe.turn.locked() or pipe.is_slow(len(data)):
        return waiting.run(request, _write(request, opened, pipe, data, respond, exchange=True))
    pipe.write(data)
    return read(request, opened, respond) if pipe.is_empty and pipe.answers_later else respond()


def read(request: TreeRequest, opened: Open, respond: Callable[[], Response]) -> Response | Pending:
    """Answer with the result of ``respond`` when earlier data has been processed and there is a message. Pipes are in
    blocking mode. [MS-SMB2 3.3.5.12]"""
    pipe = pipe_of(opened)

    def attempt() -> Response | Awaitable[None]:
        if pipe.turn.locked():
            return _passed(pipe)
        if pipe.is_empty:
            raise waiting.MustWait(pipe)
        return respond()

    return waiting.retry(request, attempt, Interim.AT_ONCE)


async def _passed(pipe: Pipe) -> None:
    async with pipe.turn:
        pass


async def _write(
    request: TreeRequest, opened: Open, pipe: Pipe, data: bytes, respond: Callable[[], Response], exchange: bool = False
) -> Response:
    async with pipe.turn:
        request.check_fence()
        if not pipe.begin():
            raise StatusError(NtStatus.FILE_CLOSED)
        identity = opened.session.identity
        owner = identity.owner if identity is not None else ""

        def begin(done: waiting.Done) -> None:
            def written(error: Exception | None) -> None:
                # If the open was closed meanwhile, this closes the pipe.
                pipe.end()
                done(error)

            request.server.long_work.add(owner, _steps(pipe, data), written)

        # Even if this request is cancelled, no other may write before this has ended.
        await _to_the_end(asyncio.ensure_future(waiting.over(begin)))
        if not (exchange and pipe.is_empty and pipe.answers_later):
            return respond()
    await _message(pipe)
    return respond()


async def _message(pipe: Pipe) -> None:
    """Wait until a pipe has a message, or is closed."""
    while pipe.is_empty:
        there = asyncio.Event()
        pipe.wait(there.set)
        try:
            await there.wait()
        finally:
            pipe.unwait(there.set)


async def _to_the_end(task: asyncio.Future[None]) -> None:
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _steps(pipe: Pipe, data: bytes) -> Steps:
    pipe.write(data)
    yield


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

    return exchange(control.request, opened, bytes(control.data), respond)


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
