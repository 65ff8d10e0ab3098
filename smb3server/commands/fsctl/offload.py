"""Offloaded data transfers (ODX): FSCTL_OFFLOAD_READ gives a token for data, FSCTL_OFFLOAD_WRITE copies what a token
stands for. [MS-FSA 2.1.5.10.20, 2.1.5.10.21]

A token stands for the data as it was at the OFFLOAD_READ [MS-FSCC 2.3.42]. The server makes no copy of that data then.
It notes when the file was changed last, and refuses the token (INVALID_TOKEN) once the file was changed since, by
whomever. A token belongs to the open that it was read through, so it ends with that open, and to the open's session.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from smb3server.access import required
from smb3server.backends.base import DataVersion, Handle
from smb3server.commands.fsctl.copy_chunk import copy_range
from smb3server.commands.fsctl.file import zero
from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.dispatch import waiting
from smb3server.dispatch.long_work import on_worker
from smb3server.dispatch.lookup import handle_of, store_of
from smb3server.dispatch.request import Pending, Response
from smb3server.dispatch.stable_storage import flushed
from smb3server.files import write_times
from smb3server.process.change_times import WHOLE_SECONDS_NS, may_hide_a_change
from smb3server.process.long_work import Steps
from smb3server.state.change_reports import report_write
from smb3server.state.objects import Open
from smb3server.state.offload_tokens import Grant
from smb3server.wire import attributes as attr
from smb3server.wire import offload as wire
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError

MAX_TRANSFER = 256 << 20
"""Bytes that one token stands for at most. Clients ask again for the rest. A multiple of any sector size."""
_STEP = 1 << 20
"""Bytes copied in one step."""
_PAUSE = 0.02
_PATIENCE = 1.2 * WHOLE_SECONDS_NS / 1e9
"""Seconds that OFFLOAD_READ waits at most for a file that is being written."""
_UNSUPPORTED = attr.SPARSE | attr.COMPRESSED
_LARGEST = (1 << 64) - 1


def _check_sizes(control: Control, taken: int, given: int) -> None:
    """Raise BUFFER_TOO_SMALL if the input has less than ``taken`` bytes, or there is no room for ``given``."""
    if len(control.data) < taken or control.max_output < given:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)


def _check_range(sector: int, size: int, wanted_size: int, offset: int, length: int, transfer: int = 0) -> None:
    """Raise INVALID_PARAMETER for numbers that no file can have, or that are not of whole sectors."""
    if offset % sector or length % sector or transfer % sector or size != wanted_size or offset + length > _LARGEST:
        raise StatusError(NtStatus.INVALID_PARAMETER)


def _check_file(opened: Open, offset: int, refusal: NtStatus, sector: int) -> int:
    """Return the end of file. Raise ``StatusError`` if the file cannot take part, or has nothing at ``offset``."""
    if opened.is_directory or opened.virtual_disk is not None:
        raise StatusError(refusal)
    info = handle_of(opened).info()
    if info.attributes & _UNSUPPORTED:
        raise StatusError(refusal)
    if not info.link_count:
        raise StatusError(NtStatus.FILE_DELETED)
    if offset >= info.end_of_file:
        raise StatusError(NtStatus.END_OF_FILE)
    if info.end_of_file < sector:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return info.end_of_file


def _whole(length: int, sector: int) -> int:
    return -(-length // sector) * sector


@fsctl(Fsctl.OFFLOAD_READ)
def offload_read(control: Control) -> Response | Pending:
    """Return a token for a range of the file. [MS-FSA 2.1.5.10.20]"""
    opened = control.open()
    sector = store_of(opened).volume().sector_size
    required.check(opened.granted_access, required.FSCTL[control.code])
    _check_sizes(control, wire.READ_INPUT.size, wire.READ_OUTPUT.size)
    body = wire.READ_INPUT.unpack(control.data)
    _check_range(sector, body.size, wire.READ_INPUT.size, body.file_offset, body.copy_length)
    if not body.copy_length:
        return _read(control, wire.OffloadReadOutput())
    reading = _Reading(control, opened, body, sector)
    return reading.answer() or waiting.run(control.request, reading.run())


def _read(control: Control, output: wire.OffloadReadOutput) -> Response:
    return control.respond(wire.READ_OUTPUT.pack(output))


@dataclass(slots=True, eq=False)
class _Reading:
    """An OFFLOAD_READ, which waits until a later change of the file cannot be mistaken for the last one."""

    control: Control
    opened: Open
    body: wire.OffloadReadInput
    sector: int

    async def run(self) -> Response:
        for _ in range(int(_PATIENCE / _PAUSE)):
            await asyncio.sleep(_PAUSE)
            answer = self.answer()
            if answer is not None:
                return answer
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)

    def answer(self) -> Response | None:
        """Return the response. None: the file was changed just now. Raises ``StatusError``."""
        opened, body = self.opened, self.body
        offset = body.file_offset
        end = _check_file(opened, offset, NtStatus.OFFLOAD_READ_FILE_NOT_SUPPORTED, self.sector)
        file, handle = opened.file, handle_of(opened)
        if file is None:
            raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
        if file.locks.locks and file.locks.denies_read(opened, offset, body.copy_length):
            raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
        length, flags = min(body.copy_length, MAX_TRANSFER), 0
        if offset + body.copy_length > end:
            rest = _whole(end - offset, self.sector)
            length = min(length, rest)
            flags = wire.ALL_ZERO_BEYOND_CURRENT_RANGE if length == rest else 0
        output = wire.OffloadReadOutput(flags=flags, transfer_length=length)
        if not handle.allocated_ranges(offset, min(length, end - offset), 2):
            return _read(self.control, output)
        version = handle.data_version()
        if version.changed <= time.time_ns() and may_hide_a_change(version.changed):
            return None
        tokens = self.control.request.server.offload_tokens
        grant = Grant(opened.file_id[0], offset, length, version.changed, version.size)
        return _read(self.control, output._replace(token=tokens.make(grant, body.token_time_to_live)))


@fsctl(Fsctl.OFFLOAD_WRITE)
def offload_write(control: Control) -> Response | Pending:
    """Copy what a token stands for into a range of the file. The file is never extended. [MS-FSA 2.1.5.10.21]"""
    opened = control.open()
    store = store_of(opened)
    if store.read_only:
        raise StatusError(NtStatus.MEDIA_WRITE_PROTECTED)
    sector = store.volume().sector_size
    required.check(opened.granted_access, required.FSCTL[control.code])
    _check_sizes(control, wire.WRITE_INPUT.size, wire.WRITE_OUTPUT.size)
    body = wire.WRITE_INPUT.unpack(control.data)
    offset = body.file_offset
    _check_range(sector, body.size, wire.WRITE_INPUT.size, offset, body.copy_length, body.transfer_offset)
    if not body.copy_length:
        return control.respond(_written(0))
    if offset + body.copy_length > opened.max_offset:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    end = _check_file(opened, offset, NtStatus.OFFLOAD_WRITE_FILE_NOT_SUPPORTED, sector)
    file = opened.file
    if file is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if file.locks.locks and file.locks.denies_write(opened, offset, body.copy_length):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
    length = min(body.copy_length, _whole(end - offset, sector))
    if wire.TOKEN.unpack(body.token).token_type == wire.ZERO_DATA:
        return zero(control, opened, offset, min(length, end - offset), _written(length))
    source, grant = _redeem(control, opened, body)
    length = min(length, grant.length - body.transfer_offset)
    transfer = _Transfer(
        control,
        opened,
        source,
        version=grant.version,
        source_offset=grant.offset + body.transfer_offset,
        offset=offset,
        length=length,
        end=end,
    )
    file.data_changes(opened.caching)
    write_times.changing(opened)
    return waiting.run(control.request, transfer.run())


def _written(length: int) -> bytes:
    return wire.WRITE_OUTPUT.pack(wire.OffloadWriteOutput(length_written=length))


def _redeem(control: Control, opened: Open, body: wire.OffloadWriteInput) -> tuple[Open, Grant]:
    """Return the open that a token was read through, and what the token stands for. Raises ``StatusError``.

    INVALID_TOKEN: it was not made here, has expired, or belongs to another session; or its data is there no longer.
    DEVICE_UNREACHABLE: the data is in another share. [MS-FSCC 2.3.44]"""
    server = control.request.server
    grant = server.offload_tokens.read(body.token)
    source = server.opens.by_id.get(grant.open_id) if grant is not None else None
    if grant is None or source is None or source.session is not control.request.session or source.handle is None:
        raise StatusError(NtStatus.INVALID_TOKEN)
    if source.tree.share is not opened.tree.share:
        raise StatusError(NtStatus.DEVICE_UNREACHABLE)
    if source.handle.data_version() != grant.version:
        raise StatusError(NtStatus.INVALID_TOKEN)
    if body.transfer_offset >= grant.length:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return source, grant


@dataclass(slots=True, eq=False)
class _Transfer:
    """The copy of what a token stands for, on a worker thread if the store has descriptors."""

    control: Control
    opened: Open
    source: Open
    version: DataVersion
    source_offset: int
    offset: int
    length: int
    """Bytes, of whole sectors. The last one may reach beyond the end of either file."""
    end: int
    """End of file of the target."""

    async def run(self) -> Response:
        opened, source = self.opened, self.source
        target, origin = handle_of(opened), handle_of(source)
        steps = self._steps(target, origin)
        try:
            if target.fileno() is None or origin.fileno() is None or store_of(opened).retains:
                await self._here(steps)
            else:
                await on_worker(self.control.request, opened, steps, source)
        finally:
            if opened.handle is not None:
                report_write(opened)
        await flushed(self.control.request, opened)
        return self.control.respond(_written(self.length))

    async def _here(self, steps: Steps) -> None:
        """Take the steps on the event loop. Raises ``StatusError``: the share was lost, or an open was closed."""
        for _ in steps:
            await asyncio.sleep(0)
            if self.opened.handle is None or self.source.handle is None:
                raise StatusError(NtStatus.FILE_CLOSED)
            if self.control.request.server.has_lost(self.opened.tree.share):
                raise StatusError(NtStatus.NETWORK_NAME_DELETED)

    def _steps(self, target: Handle, origin: Handle) -> Steps:
        """Copy. Raise INVALID_TOKEN if the source was changed meanwhile: the range of the target is undefined then."""
        within = self.source.file is self.opened.file
        overlapping = within and abs(self.source_offset - self.offset) < self.length
        room = min(self.length, self.end - self.offset)
        data = min(room, self.version.size - self.source_offset)
        starts = list(range(0, data, _STEP))
        if overlapping and self.offset > self.source_offset:
            starts.reverse()
        for start in starts:
            size = min(_STEP, data - start)
            copied = copy_range(
                target, origin, self.source_offset + start, self.offset + start, size, overlapping=overlapping
            )
            # A copy within one file changes the file itself.
            if copied != size or (not within and origin.data_version() != self.version):
                raise StatusError(NtStatus.INVALID_TOKEN)
            yield
        if room > data:
            target.write_from([bytes(room - data)], self.offset + data)
