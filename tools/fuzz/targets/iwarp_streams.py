"""The inbound half of an iWARP stream: DDP, RDMAP, placement. [RFC 5040, RFC 5041]

The first byte of the input says whether there is a CRC, how the stream is cut into pieces, and what follows: raw bytes,
or ULPDUs that are framed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from smbdirect.providers.iwarp import mpa
from smbdirect.providers.iwarp.operations import Operations
from smbdirect.providers.iwarp.rdmap import TerminateError
from smbdirect.providers.iwarp.receiver import Receiver, RingPool
from tools.fuzz import framed
from tools.fuzz.regions import Regions, check_guards
from tools.fuzz.target import Target

RINGS = RingPool()
_CUTS = (1 << 20, 1, 7, 1448)


def _fpdu(ulpdu: bytes, crc: bool) -> bytes:
    data = len(ulpdu).to_bytes(2, "big") + ulpdu
    return data + mpa.trailer(len(ulpdu), crc32c(data) if crc else None)


def _run(data: bytes) -> None:
    if not data:
        return
    mode = data[0]
    crc = bool(mode & 1)
    regions = Regions()
    operations = Operations(
        regions, on_read_request=lambda *_: None, on_read_done=lambda read: None, on_terminate=lambda payload: None
    )
    for _ in range(4):
        operations.receives.append((memoryview(bytearray(2048)), None))
    receiver = Receiver(operations, RINGS, crc)
    stream = data[1:] if mode & 2 else b"".join(_fpdu(ulpdu, crc) for ulpdu in framed.split(data[1:]))
    size = _CUTS[mode >> 2 & 3]
    try:
        for at in range(0, len(stream), size):
            receiver.feed(stream[at : at + size])
    except TerminateError as error:
        if len(error.message) > 52:
            raise
    finally:
        check_guards(regions)


def _seeds() -> Iterator[bytes]:
    token, address = Regions.TOKEN.to_bytes(4, "big"), Regions.ADDRESS.to_bytes(8, "big")
    send = bytes((0x41, 0x43)) + bytes(4) + bytes(4) + b"\0\0\0\1" + bytes(4) + b"hello"
    second = bytes((0x41, 0x44)) + token + bytes(4) + b"\0\0\0\2" + bytes(4)
    write = bytes((0xC1, 0x40)) + token + address + bytes(64)
    read = bytes((0x41, 0x41)) + bytes(4) + b"\0\0\0\1" + b"\0\0\0\1" + bytes(4)
    read += bytes(12) + b"\0\0\0\x40" + token + address
    for mode in range(16):
        yield bytes((mode,)) + framed.join([send, write, read, second])


TARGET = Target(_run, _seeds, max_input=8192)
