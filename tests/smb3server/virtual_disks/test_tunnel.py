"""Tunnel operations and SCSI commands, and requests whose lengths are wrong. [MS-RSVD 3.2.5.5]"""

from __future__ import annotations

import random
import struct

import pytest

from smb3server.virtual_disks import scsi, tunnel
from smb3server.virtual_disks.device import DeviceOpen
from smb3server.virtual_disks.tunnel import DiskError
from smb3server.wire import svhdx as wire
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import Operation, Status
from tests.lab.disks import SIZE, Folder, ask, command, device_of, new_disk


@pytest.fixture
def device() -> DeviceOpen:
    folder = Folder()
    return device_of(new_disk(folder), folder)


def refusal(device: DeviceOpen, code: int, body: bytes = b"", most: int = 65536) -> tuple[str, int]:
    try:
        ask(device, code, body, most)
    except StatusError as error:
        return "request", error.status
    except DiskError as error:
        return "disk", error.status
    raise AssertionError("it was not refused")


def test_the_header_decides_first(device: DeviceOpen) -> None:
    with pytest.raises(StatusError) as raised:
        tunnel.parse(device, bytes(15), 100)
    assert raised.value.status == NtStatus.BUFFER_TOO_SMALL
    assert refusal(device, 0x01001001) == ("request", NtStatus.INVALID_DEVICE_REQUEST)
    assert refusal(device, 0x02003001) == ("disk", Status.VERSION_MISMATCH)
    assert refusal(device, 0x02001099) == ("disk", NtStatus.INVALID_PARAMETER)


@pytest.mark.parametrize(
    ("code", "least", "status"),
    [
        (Operation.GET_INITIAL_INFO, 40, NtStatus.BUFFER_TOO_SMALL),
        (Operation.CHECK_CONNECTION_STATUS, 16, NtStatus.BUFFER_OVERFLOW),
        (Operation.SRB_STATUS, 40, NtStatus.INVALID_PARAMETER),
        (Operation.GET_DISK_INFO, 71, NtStatus.BUFFER_TOO_SMALL),
        (Operation.SCSI, 52, NtStatus.INVALID_PARAMETER),
        (Operation.VALIDATE_DISK, 17, NtStatus.BUFFER_TOO_SMALL),
        (Operation.QUERY_SAFE_SIZE, 24, NtStatus.BUFFER_TOO_SMALL),
    ],
)
def test_the_least_room_for_an_answer(device: DeviceOpen, code: int, least: int, status: int) -> None:
    assert refusal(device, code, bytes(56), least - 1) == ("request", status)


def test_what_the_disk_is(device: DeviceOpen) -> None:
    info = wire.INITIAL_INFO.unpack(ask(device, Operation.GET_INITIAL_INFO))
    assert info == (2, 512, 4096, 0, SIZE)
    disk = wire.DISK_INFO.unpack(ask(device, Operation.GET_DISK_INFO, bytes(56)))
    assert (disk.disk_type, disk.disk_format, disk.block_size, disk.is_mounted) == (3, 3, 2 << 20, 1)
    assert ask(device, Operation.VALIDATE_DISK, bytes(56)) == b"\1"


def test_sectors_by_scsi(device: DeviceOpen) -> None:
    data = random.randbytes(1024)
    assert command(device, struct.pack(">BBIBH", 0x2A, 0, 5, 0, 2), data)[0] == scsi.GOOD
    assert command(device, struct.pack(">BBQIH", 0x88, 0, 5, 2, 0), room=1024)[2] == data
    assert device.disk.flush() is None
    assert command(device, b"\x35")[0] == scsi.GOOD
    status, sense, _ = command(device, struct.pack(">BBIBH", 0x28, 0, SIZE // 512 - 1, 0, 2), room=1024)
    assert (status, sense[2], sense[12]) == (scsi.CHECK_CONDITION, scsi.ILLEGAL_REQUEST, 0x21)
    status, sense, _ = command(device, struct.pack(">BBIBH", 0x2A, 0, 5, 0, 2), data[:512])
    assert (status, sense[2]) == (scsi.CHECK_CONDITION, scsi.ILLEGAL_REQUEST)
    status, sense, _ = command(device, b"\xc0")
    assert (status, sense[2], sense[12]) == (scsi.CHECK_CONDITION, scsi.ILLEGAL_REQUEST, 0x20)


def test_what_initiators_ask_first(device: DeviceOpen) -> None:
    assert command(device, struct.pack(">BBBHB", 0x12, 0, 0, 255, 0), room=255)[2][8:16] == b"SMB3SRV "
    pages = command(device, struct.pack(">BBBHB", 0x12, 1, 0, 255, 0), room=255)[2]
    for page in pages[4:]:
        answer = command(device, struct.pack(">BBBHB", 0x12, 1, page, 255, 0), room=255)[2]
        assert (answer[1], int.from_bytes(answer[2:4], "big")) == (page, len(answer) - 4)
    capacity = command(device, b"\x9e\x10" + bytes(11) + b"\x20", room=32)[2]
    assert struct.unpack(">QI", capacity[:12]) == (SIZE // 512 - 1, 512)
    assert capacity[13] == 3
    assert command(device, b"\x1a\0\x3f\0\xff", room=255)[2][4:7] == b"\x08\x12\x04"
    assert command(device, b"\xa0" + bytes(5) + b"\0\0\0\x10", room=16)[2] == struct.pack(">I12x", 8)


def test_a_reader_cannot_write() -> None:
    folder = Folder()
    reader = device_of(new_disk(folder), folder, may_write=False)
    status, sense, _ = command(reader, struct.pack(">BBIBH", 0x2A, 0, 5, 0, 1), bytes(512))
    assert (status, sense[2]) == (scsi.CHECK_CONDITION, scsi.DATA_PROTECT)
    start = wire.META_START.pack(wire.MetaStart(operation_type=0)) + bytes(12)
    assert refusal(reader, Operation.META_OPERATION_START, start) == ("request", NtStatus.ACCESS_DENIED)


def test_another_initiator_is_kept_out_by_reservation(device: DeviceOpen) -> None:
    other = device_of(device.disk, Folder(), initiator=b"o" * 16)
    out = struct.pack(">BBBHI", 0x5F, 0, 0, 0, 24)
    assert command(device, out, bytes(8) + b"firstkey" + bytes(8))[0] == scsi.GOOD
    reserve = struct.pack(">BBBHI", 0x5F, 1, 5, 0, 24)
    assert command(device, reserve, b"firstkey" + bytes(16))[0] == scsi.GOOD
    assert command(other, struct.pack(">BBIBH", 0x2A, 0, 5, 0, 1), bytes(512))[0] == scsi.RESERVATION_CONFLICT
    with pytest.raises(StatusError) as raised:
        other.write(bytes(512), 0)
    assert raised.value.status == Status.RESERVATION_CONFLICT
    other.read(memoryview(bytearray(512)), 0)


def test_an_error_is_stored_and_asked_for(device: DeviceOpen) -> None:
    with pytest.raises(StatusError) as raised:
        device.read(memoryview(bytearray(512)), SIZE)
    key = raised.value.status & 0xFF
    assert raised.value.status == Status.ERROR_STORED | key
    answer = wire.SRB_STATUS.unpack(ask(device, Operation.SRB_STATUS, bytes([key]) + bytes(27)))
    assert (answer.status_key, answer.srb_status, answer.scsi_status, answer.sense[12]) == (key, 0x84, 2, 0x21)
    assert refusal(device, Operation.SRB_STATUS, bytes([key + 1])) == ("disk", Status.ERROR_NOT_AVAILABLE)


def test_resizing(device: DeviceOpen) -> None:
    def resize(*fields: int) -> bytes:
        return wire.META_START.pack(wire.MetaStart(b"t" * 16)) + wire.RESIZE.pack(wire.Resize(*fields))

    start = Operation.META_OPERATION_START
    assert refusal(device, start, resize(0)[:-1]) == ("request", NtStatus.BUFFER_TOO_SMALL)
    assert refusal(device, start, resize(SIZE, 0, 0, 1)) == ("request", NtStatus.INVALID_PARAMETER_1)
    assert refusal(device, start, resize(SIZE // 2, 1)) == ("request", NtStatus.INVALID_PARAMETER)
    device.disk.write(b"x" * 512, SIZE - 512)
    assert refusal(device, start, resize(SIZE // 2)) == ("disk", NtStatus.INVALID_PARAMETER)
    device.disk.initiators[b"o" * 16] = 1
    assert ask(device, start, resize(2 * SIZE)) == b""
    assert device.size == 2 * SIZE
    assert device.disk.reservations.next_attention(b"o" * 16) is not None
    assert ask(device, Operation.META_OPERATION_QUERY_PROGRESS, b"t" * 16) == struct.pack("<QQ", 1, 1)


def test_change_tracking(device: DeviceOpen) -> None:
    folder = device.files
    log = folder.create("log")
    name = "log\0".encode("utf-16-le")
    size = wire.TRACKING_START.size
    start = (
        wire.TRACKING_START.pack(wire.TrackingStart(name_offset=size, name_length=len(name), max_log_size=32)) + name
    )
    assert refusal(device, Operation.CHANGE_TRACKING_START, start[:-1]) == ("request", NtStatus.INVALID_PARAMETER)
    assert refusal(device, Operation.CHANGE_TRACKING_STOP)[0] == "disk"
    assert ask(device, Operation.CHANGE_TRACKING_START, start) == b""
    for offset in (512, 4096, 8192):
        device.write(b"x" * 512, offset)
    assert log.info().end_of_file == 32
    found = wire.TRACKING_PARAMETERS.unpack(ask(device, Operation.CHANGE_TRACKING_GET_PARAMETERS))
    assert (found.status, found.log_size) == (wire.TrackingStatus.LOG_SIZE_EXCEEDED, 32)
    assert ask(device, Operation.CHANGE_TRACKING_STOP) == struct.pack("<I", wire.TrackingStatus.LOG_SIZE_EXCEEDED)


def test_lengths_that_lie(device: DeviceOpen) -> None:
    """Whatever a request says of its lengths, it is refused or answered."""
    random.seed(3)
    for _ in range(3000):
        code = random.choice(list(Operation))
        body = random.randbytes(random.randrange(140))
        if random.random() < 0.5:
            body = bytes(random.choice((0, 0, 0, 1, 2, 0xFF)) for _ in body)
        try:
            ask(device, code, body, random.choice((16, 40, 100, 65536)))
        except (StatusError, DiskError, OSError):
            continue
