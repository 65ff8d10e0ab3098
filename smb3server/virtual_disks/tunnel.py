"""Tunnel operations: what a client asks of a disk by FSCTL_SVHDX_SYNC_TUNNEL_REQUEST. [MS-RSVD 3.2.5.5]

Each operation is a function of a ``Call``. It returns what follows the header of the response, or steps that end with
it. ``StatusError`` fails the FSCTL; ``DiskError`` and ``OSError`` become the Status of the header.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from smb3server.virtual_disks import scsi
from smb3server.virtual_disks.device import AUTO_SENSE, NO_INITIATOR, SRB_ERROR, SRB_SUCCESS, DeviceOpen
from smb3server.wire import svhdx as wire
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import Operation, Status

SERVICE_VERSION = 2
"""ServerServiceVersion. [MS-RSVD 3.2.1.1]"""
_HEADER = wire.TUNNEL_HEADER.size
_FAMILY, _OUR_FAMILY = 0xFF000000, 0x02000000
_VERSION, _VERSIONS = 0x00FFF000, (0x00001000, 0x00002000)
Slow = Generator[None, None, bytes]


class DiskError(Exception):
    """Ends an operation with a Status in the header of its response. ``body``: what follows the header."""

    def __init__(self, status: int, body: bytes = b"") -> None:
        super().__init__(status)
        self.status, self.body = status, body


class Call(NamedTuple):
    """One tunnel operation."""

    device: DeviceOpen
    header: wire.TunnelHeader
    body: bytes
    """What follows the header of the request."""
    max_output: int

    def check_output(self, size: int, status: int = NtStatus.BUFFER_TOO_SMALL) -> None:
        """Raise ``StatusError`` if the client does not take a header and ``size`` bytes."""
        if self.max_output < _HEADER + size:
            raise StatusError(status)

    def check_input(self, size: int) -> None:
        """Raise BUFFER_TOO_SMALL if the request is shorter than a header and ``size`` bytes."""
        if len(self.body) < size:
            raise StatusError(NtStatus.BUFFER_TOO_SMALL)

    def respond(self, body: bytes = b"", status: int = 0) -> bytes:
        """Return the whole response."""
        return wire.TUNNEL_HEADER.pack(self.header._replace(status=status)) + body


Handler = Callable[[Call], "bytes | Slow"]
OPERATIONS: dict[int, Handler] = {}


def operation(code: Operation) -> Callable[[Handler], Handler]:
    """Register the function of an operation."""

    def register(handler: Handler) -> Handler:
        OPERATIONS[code] = handler
        return handler

    return register


def parse(device: DeviceOpen, data: bytes, max_output: int) -> Call:
    """Return the call that a request makes. Raises ``StatusError``. [MS-RSVD 3.2.5.5]"""
    if len(data) < _HEADER:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    header = wire.TUNNEL_HEADER.unpack(data)
    if header.operation_code & _FAMILY != _OUR_FAMILY:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if max_output < _HEADER:
        raise StatusError(NtStatus.BUFFER_OVERFLOW)
    return Call(device, header, data[_HEADER:], max_output)


def run(call: Call) -> bytes | Slow:
    """Do an operation, or return the steps that do it. Raises ``DiskError``, ``StatusError``, ``OSError``."""
    code = call.header.operation_code
    if code & _VERSION not in _VERSIONS:
        raise DiskError(Status.VERSION_MISMATCH)
    handler = OPERATIONS.get(code)
    if handler is None:
        raise DiskError(NtStatus.INVALID_PARAMETER)
    return handler(call)


@operation(Operation.GET_INITIAL_INFO)
def _initial_info(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.1]"""
    call.check_output(wire.INITIAL_INFO.size)
    metadata = call.device.disk.active.metadata
    return wire.INITIAL_INFO.pack(
        wire.InitialInfo(
            SERVICE_VERSION, metadata.sector_size, metadata.physical_sector_size, virtual_size=call.device.size
        )
    )


@operation(Operation.CHECK_CONNECTION_STATUS)
def _connection_status(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.2]"""
    return b""


@operation(Operation.SRB_STATUS)
def _srb_status(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.3]"""
    call.check_output(wire.SRB_STATUS.size, NtStatus.INVALID_PARAMETER)
    if not call.body:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    key = call.body[0]
    error = call.device.error(key)
    if error is None:
        raise DiskError(Status.ERROR_NOT_AVAILABLE)
    sense = error.sense.ljust(wire.SENSE_LENGTH, b"\0")
    return wire.SRB_STATUS.pack(wire.SrbStatus(key, error.srb_status, error.scsi_status, sense=sense))


_FIXED, _DYNAMIC = 2, 3
_FORMAT_VHDX, _FORMAT_SET = 3, 4


@operation(Operation.GET_DISK_INFO)
def _disk_info(call: Call) -> bytes:
    """[MS-RSVD 3.2.5.5.4]"""
    call.check_output(wire.DISK_INFO.size)
    disk = call.device.disk
    image = disk.active
    aligned = image.metadata.physical_sector_size == 4096
    return wire.DISK_INFO.pack(
        wire.DiskInfo(
            _FIXED if image.is_fixed else _DYNAMIC,
            _FORMAT_SET if disk.vhd_set is not None else _FORMAT_VHDX,
            image.block_size,
            image.data_write_guid,
            is_mounted=1,
            is_4k_aligned=aligned,
            file_size=disk.allocated(),
            virtual_disk_id=image.metadata.disk_id,
        )
    )


@operation(Operation.VALIDATE_DISK)
def _validate(call: Call) -> Slow:
    """[MS-RSVD 3.2.5.5.6]"""
    call.check_output(1)
    yield
    return bytes((call.device.disk.is_valid(),))


@operation(Operation.QUERY_SAFE_SIZE)
def _safe_size(call: Call) -> Slow:
    """[MS-RSVD 3.2.5.5.15]"""
    call.check_output(8)
    yield
    chain = call.device.disk.chain
    return max(image.safe_size() for image in chain).to_bytes(8, "little")


@operation(Operation.SCSI)
def _scsi(call: Call) -> bytes | Slow:
    """Execute a SCSI command. [MS-RSVD 3.2.5.5.5]

    Whether data moves to the disk or from it, the command says: by 2.2.4.7 Disposition 0 is from the disk, but
    Microsoft's clients send 1 then, as SCSI_IOCTL_DATA_IN."""
    call.check_output(wire.SCSI_RESPONSE.size, NtStatus.INVALID_PARAMETER)
    if len(call.body) < wire.SCSI_REQUEST.size:
        raise DiskError(NtStatus.INVALID_PARAMETER, call.body)
    request = wire.SCSI_REQUEST.unpack(call.body)
    data = call.body[wire.SCSI_REQUEST.size :]
    if (
        request.length != wire.SCSI_REQUEST.size
        or request.sense_length > wire.CDB_LENGTH + 4
        or request.cdb_length > wire.CDB_LENGTH
        or request.disposition > 2
        or (request.disposition == 1 and request.data_transfer_length < len(data))
    ):
        raise DiskError(NtStatus.INVALID_PARAMETER, call.body[: wire.SCSI_REQUEST.size])
    if call.device.initiator == NO_INITIATOR or call.device.snapshot is not None:
        raise DiskError(NtStatus.INVALID_HANDLE, call.body[: wire.SCSI_REQUEST.size])
    device = call.device
    cdb = request.cdb[: request.cdb_length].ljust(wire.CDB_LENGTH, b"\0")
    may_write = device.may_write and device.disk.active.writable
    sent = data[: request.data_transfer_length]
    command = scsi.Command(device.disk, device.initiator, cdb, sent, may_write, device.outlives_the_server())
    if cdb[0] in scsi.SLOW:
        return _slow_scsi(call, request, command)
    return _scsi_response(call, request, scsi.execute(command))


def _slow_scsi(call: Call, request: wire.ScsiRequest, command: scsi.Command) -> Slow:
    yield
    return _scsi_response(call, request, scsi.execute(command))


def _scsi_response(call: Call, request: wire.ScsiRequest, result: scsi.Result) -> bytes:
    if len(result.data) > request.data_transfer_length:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    call.check_output(wire.SCSI_RESPONSE.size + len(result.data))
    srb = SRB_SUCCESS if result.status == scsi.GOOD else SRB_ERROR
    response = wire.ScsiResponse(
        srb_status=srb | (AUTO_SENSE if result.sense else 0),
        scsi_status=result.status,
        cdb_length=request.cdb_length,
        disposition=request.disposition,
        srb_flags=request.srb_flags,
        data_transfer_length=len(result.data),
        sense=result.sense.ljust(wire.SENSE_LENGTH, b"\0"),
    )
    return wire.SCSI_RESPONSE.pack(response) + result.data
