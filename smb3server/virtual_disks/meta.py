"""The tunnel operations of version 2: meta-operations, VHD sets, change tracking. [MS-RSVD 3.2.5.5.7 to 3.2.5.5.14]"""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Callable
from functools import partial

from smb3server.virtual_disks import snapshots
from smb3server.virtual_disks.reading import is_plain_name
from smb3server.virtual_disks.reservations import Attention
from smb3server.virtual_disks.tracking import Tracking
from smb3server.virtual_disks.tunnel import Call, DiskError, Slow, operation
from smb3server.virtual_disks.vhd_set import is_set_name
from smb3server.wire import svhdx as wire
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import MetaType, Operation, SetInformation, SnapshotType, Stage, TrackingStatus

_STAGES = struct.Struct("<6I")
_TRACK = 1
"""SVHDX_SNAPSHOT_DISK_FLAG_ENABLE_CHANGE_TRACKING."""
_DELETE_ON_CLOSE = 1
_MOST_RANGES = 65536
_TYPES = frozenset(SnapshotType)


def _check_writable(call: Call) -> None:
    """Raise ACCESS_DENIED unless the open may change the disk."""
    device = call.device
    if not device.may_write or device.snapshot is not None or not device.disk.active.writable:
        raise StatusError(NtStatus.ACCESS_DENIED)


@operation(Operation.META_OPERATION_START)
def _start(call: Call) -> bytes | Slow:
    """[MS-RSVD 3.2.5.5.7]"""
    call.check_input(wire.META_START.size)
    start = wire.META_START.unpack(call.body)
    handler = _META.get(start.operation_type)
    if handler is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    _check_writable(call)
    return handler(call, start, call.body[wire.META_START.size :])


def _done(call: Call, start: wire.MetaStart, work: snapshots.Work) -> Slow:
    """Take the steps of a meta-operation, which has no answer but the header."""
    disk = call.device.disk
    disk.note_progress(start.transaction_id, 0, 1)
    yield from work
    disk.note_progress(start.transaction_id, 1, 1)
    return b""


def _progress(call: Call, start: wire.MetaStart) -> snapshots.Progress:
    return partial(call.device.disk.note_progress, start.transaction_id)


def _resize(call: Call, start: wire.MetaStart, data: bytes) -> Slow:
    """[MS-RSVD 3.2.5.5.7.5]"""
    if len(data) < wire.RESIZE.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    asked = wire.RESIZE.unpack(data)
    disk = call.device.disk
    if asked.shrink_to_minimum and (asked.new_size or asked.expand_only or asked.allow_unsafe):
        raise StatusError(NtStatus.INVALID_PARAMETER_1)
    if asked.expand_only and asked.new_size < disk.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    safe = max(image.safe_size() for image in disk.chain)
    size = safe if asked.shrink_to_minimum else asked.new_size
    if size < safe and not asked.allow_unsafe:
        raise DiskError(NtStatus.INVALID_PARAMETER)
    return _done(call, start, _resized(call, size))


def _resized(call: Call, size: int) -> snapshots.Work:
    yield
    disk = call.device.disk
    if size != disk.size:
        disk.resize(size)
        disk.reservations.establish(set(disk.initiators), Attention.CAPACITY_CHANGED, call.device.initiator)


def _check_stages(packed: bytes) -> tuple[int, ...]:
    """Return the stages of a request, in their order. Raises ``StatusError``. [MS-RSVD 3.2.5.5.7.1]"""
    stages = _STAGES.unpack(packed)
    if stages[0] == Stage.INVALID:
        raise StatusError(NtStatus.INVALID_PARAMETER_2)
    for before, stage in itertools.pairwise(stages):
        if stage == Stage.INVALID:
            continue
        if before == Stage.INVALID:
            raise StatusError(NtStatus.INVALID_PARAMETER_3)
        if stage <= before:
            raise StatusError(NtStatus.INVALID_PARAMETER_4)
    if max(stages) > Stage.FINALIZE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return tuple(stage for stage in stages if stage)


def _create(call: Call, start: wire.MetaStart, data: bytes) -> bytes | Slow:
    """Make a snapshot when the stage SwitchObjectStore comes. Nothing has to be stopped for it.
    [MS-RSVD 3.2.5.5.7.1]"""
    if len(data) < wire.CREATE_SNAPSHOT.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    asked = wire.CREATE_SNAPSHOT.unpack(data)
    if len(data) < wire.CREATE_SNAPSHOT.size + asked.parameters_size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    if asked.snapshot_type not in _TYPES:
        raise StatusError(NtStatus.INVALID_PARAMETER_1)
    stages = _check_stages(asked.stages)
    if asked.flags and (
        asked.snapshot_type != SnapshotType.VM or asked.flags != _TRACK or stages[0] != Stage.INITIALIZE
    ):
        raise StatusError(NtStatus.INVALID_PARAMETER_5)
    snapshots.set_of(call.device.disk)
    if asked.snapshot_type == SnapshotType.CDP:
        raise DiskError(NtStatus.NOT_SUPPORTED)
    device = call.device
    if Stage.INITIALIZE in stages:
        device.prepare(asked.snapshot_id, bool(asked.flags & _TRACK))
    if Stage.SWITCH_OBJECT_STORE not in stages:
        return b""
    tracks = device.prepared(asked.snapshot_id)
    work = snapshots.create(device.disk, device.files, asked.snapshot_id, asked.snapshot_type, tracks)
    return _done(call, start, work)


def _optimize(call: Call, start: wire.MetaStart, data: bytes) -> bytes:
    """Nothing is left to do: images become one when a snapshot is deleted. [MS-RSVD 3.2.5.5.7.2]"""
    snapshots.set_of(call.device.disk)
    call.device.disk.note_progress(start.transaction_id, 1, 1)
    return b""


def _name_in(data: bytes, length: int) -> str:
    """Return the name of a file in the folder of the disk. Raises ``StatusError``."""
    if len(data) < length:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    try:
        name = data[:length].decode("utf-16-le").partition("\0")[0]
    except UnicodeDecodeError:
        raise StatusError(NtStatus.INVALID_PARAMETER) from None
    if not is_plain_name(name):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return name


def _extract(call: Call, start: wire.MetaStart, data: bytes) -> Slow:
    """[MS-RSVD 3.2.5.5.7.3]"""
    if len(data) < wire.EXTRACT.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    asked = wire.EXTRACT.unpack(data)
    name = _name_in(data[wire.EXTRACT.size :], asked.name_length)
    device = call.device
    source = snapshots.found_in(device.disk, asked.source)
    limit = snapshots.found_in(device.disk, asked.limit) if asked.limit != bytes(16) else None
    if asked.flags and (asked.snapshot_type != SnapshotType.VM or asked.flags != _DELETE_ON_CLOSE):
        raise StatusError(NtStatus.INVALID_PARAMETER_2)
    if asked.flags:
        raise DiskError(NtStatus.NOT_SUPPORTED)
    work = snapshots.extract(device.disk, device.files, source, limit, name, _progress(call, start))
    return _done(call, start, work)


def _convert(call: Call, start: wire.MetaStart, data: bytes) -> Slow:
    """[MS-RSVD 3.2.5.5.7.4]"""
    if len(data) < 4:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    name = _name_in(data[4:], int.from_bytes(data[:4], "little"))
    if not is_set_name(name):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    device = call.device
    return _done(call, start, snapshots.convert(device.disk, device.files, name, _progress(call, start)))


def _apply(call: Call, start: wire.MetaStart, data: bytes) -> Slow:
    """[MS-RSVD 3.2.5.5.7.6]"""
    if len(data) < wire.OF_SNAPSHOT.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    asked = wire.OF_SNAPSHOT.unpack(data)
    if asked.snapshot_type not in (SnapshotType.VM, SnapshotType.WRITEABLE):
        raise StatusError(NtStatus.INVALID_PARAMETER_1)
    device = call.device
    snapshot = snapshots.found_in(device.disk, asked.snapshot_id, asked.snapshot_type)
    return _done(call, start, snapshots.apply(device.disk, device.files, snapshot))


_META: dict[int, Callable[[Call, wire.MetaStart, bytes], bytes | Slow]] = {
    MetaType.RESIZE: _resize,
    MetaType.CREATE_SNAPSHOT: _create,
    MetaType.OPTIMIZE: _optimize,
    MetaType.EXTRACT: _extract,
    MetaType.CONVERT: _convert,
    MetaType.APPLY_SNAPSHOT: _apply,
}


@operation(Operation.META_OPERATION_QUERY_PROGRESS)
def _query_progress(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.8]"""
    call.check_input(16)
    call.check_output(wire.PROGRESS.size)
    found = call.device.disk.progress.get(call.body[:16])
    if found is None:
        raise DiskError(NtStatus.INVALID_PARAMETER)
    return wire.PROGRESS.pack(wire.Progress(*found))


@operation(Operation.VHDSET_QUERY_INFORMATION)
def _query_set(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.9]"""
    if len(call.body) != wire.SET_QUERY.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    of_set = snapshots.set_of(call.device.disk)
    asked = wire.SET_QUERY.unpack(call.body)
    kind, snapshot_type = asked.information_type, asked.snapshot_type
    if kind not in frozenset(SetInformation):
        raise StatusError(NtStatus.INVALID_PARAMETER_1)
    if kind == SetInformation.SNAPSHOT_ENTRY:
        if snapshot_type not in _TYPES:
            raise StatusError(NtStatus.INVALID_PARAMETER_1)
        snapshot = of_set.find(asked.snapshot_id, snapshot_type)
        if snapshot is None:
            raise DiskError(NtStatus.INVALID_PARAMETER)
        entry = wire.SnapshotEntry(
            created=snapshot.created, snapshot_type=snapshot.kind, is_valid=1, snapshot_id=asked.snapshot_id
        )
        return wire.SNAPSHOT_ENTRY.pack(entry)
    if kind == SetInformation.SNAPSHOT_LIST:
        if snapshot_type != SnapshotType.VM:
            raise StatusError(NtStatus.INVALID_PARAMETER_1)
        ids = [uuid.UUID(entry.snapshot_id).bytes_le for entry in of_set.snapshots if entry.kind == snapshot_type]
        return _id_list(call, ids)
    if snapshot_type:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if kind == SetInformation.OPTIMIZE_NEEDED:
        return wire.OPTIMIZE_NEEDED.pack(wire.OptimizeNeeded())
    if kind == SetInformation.CDP_SNAPSHOT_ROOT:
        # There are no CDP snapshots, so none is the oldest.
        raise DiskError(NtStatus.INVALID_PARAMETER)
    return _id_list(call, [])


def _id_list(call: Call, ids: list[bytes]) -> bytes:
    call.check_output(wire.SNAPSHOT_LIST.size)
    body = b"".join(ids)
    fits = wire.TUNNEL_HEADER.size + wire.SNAPSHOT_LIST.size + len(body) <= call.max_output
    head = wire.SnapshotList(complete=fits, number=len(ids))
    return wire.SNAPSHOT_LIST.pack(head) + (body if fits else b"")


@operation(Operation.DELETE_SNAPSHOT)
def _delete(call: Call) -> Slow:
    """[MS-RSVD 3.2.5.5.10]"""
    call.check_input(wire.DELETE_SNAPSHOT.size)
    _check_writable(call)
    asked = wire.DELETE_SNAPSHOT.unpack(call.body)
    if asked.persist_reference:
        raise DiskError(NtStatus.NOT_SUPPORTED)
    device = call.device
    snapshots.set_of(device.disk)
    snapshot = device.disk.vhd_set.find(asked.snapshot_id, asked.snapshot_type) if device.disk.vhd_set else None
    if snapshot is None:
        raise DiskError(NtStatus.INVALID_PARAMETER)
    return _deleted(snapshots.delete(device.disk, device.files, snapshot, lambda done, whole: None))


def _deleted(work: snapshots.Work) -> Slow:
    yield from work
    return b""


@operation(Operation.QUERY_VIRTUAL_DISK_CHANGES)
def _changes(call: Call) -> Slow:
    """[MS-RSVD 3.2.5.5.14]"""
    call.check_input(wire.CHANGES_QUERY.size)
    call.check_output(wire.CHANGES_REPLY.size)
    asked = wire.CHANGES_QUERY.unpack(call.body)
    if asked.snapshot_type != SnapshotType.VM:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    device = call.device
    target, limit = (snapshots.found_in(device.disk, which) for which in (asked.target, asked.limit))
    if not target.change_tracking or not limit.change_tracking:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    room = (call.max_output - wire.TUNNEL_HEADER.size - wire.CHANGES_REPLY.size) // wire.CHANGED_RANGE.size
    yield
    processed, found = snapshots.changes(
        device.files, target, limit, asked.offset, asked.length, min(room, _MOST_RANGES)
    )
    ranges = b"".join(wire.CHANGED_RANGE.pack(wire.ChangedRange(*entry)) for entry in found)
    return wire.CHANGES_REPLY.pack(wire.ChangesReply(processed, len(found))) + ranges


@operation(Operation.CHANGE_TRACKING_START)
def _tracking_start(call: Call) -> bytes:
    """Start to note changes. By 3.2.5.5.12 the log has no name, but Microsoft's suite sends one, and Windows takes it.
    [MS-RSVD 3.2.5.5.12]"""
    call.check_input(wire.TRACKING_START.size)
    _check_writable(call)
    asked = wire.TRACKING_START.unpack(call.body)
    disk = call.device.disk
    if disk.tracking is not None:
        raise DiskError(TrackingStatus.INVALID_STATE)
    log = None
    if asked.name_length:
        start = asked.name_offset
        if start < wire.TRACKING_START.size or start + asked.name_length > len(call.body):
            raise StatusError(NtStatus.INVALID_PARAMETER)
        log = call.device.files.open(_name_in(call.body[start:], asked.name_length), write=True)
    try:
        disk.tracking = Tracking(log, asked.max_log_size, bool(asked.append))
    except BaseException:
        if log is not None:
            log.close()
        raise
    return b""


@operation(Operation.CHANGE_TRACKING_GET_PARAMETERS)
def _tracking_parameters(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.11]"""
    call.check_output(wire.TRACKING_PARAMETERS.size)
    tracking = call.device.disk.tracking
    found = wire.TrackingParameters(TrackingStatus.NOT_INITIALIZED)
    if tracking is not None:
        found = wire.TrackingParameters(tracking.status, log_size=tracking.size)
    return wire.TRACKING_PARAMETERS.pack(found)


@operation(Operation.CHANGE_TRACKING_STOP)
def _tracking_stop(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.13]"""
    call.check_output(4)
    _check_writable(call)
    disk = call.device.disk
    if disk.tracking is None:
        raise DiskError(TrackingStatus.NOT_INITIALIZED, int(TrackingStatus.NOT_INITIALIZED).to_bytes(4, "little"))
    status = disk.tracking.status
    disk.tracking.close()
    disk.tracking = None
    return int(status).to_bytes(4, "little")
