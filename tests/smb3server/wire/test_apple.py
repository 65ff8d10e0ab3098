"""The create context AAPL and AFP_AfpInfo, byte by byte as Apple's client has them."""

from __future__ import annotations

import struct

import pytest

from smb3server.wire import apple
from smb3server.wire.apple import Asked, ServerCaps, ServerQuery, VolumeCaps
from smbdirect.errors import DecodeError

FINDER = b"TEXTttxt" + b"\x40\x01" + bytes(14) + b"\x80\x02" + bytes(6)


def test_a_server_query() -> None:
    assert apple.parse_query(struct.pack("<IIQQ", 1, 0, 7, 0x0D)) == ServerQuery(7, 0x0D)
    assert apple.parse_query(struct.pack("<IIQ", 2, 0, 99)) == 99
    assert apple.parse_query(struct.pack("<IIQ", 3, 0, 0)) is None


@pytest.mark.parametrize("data", [b"", bytes(15), struct.pack("<IIQ", 1, 0, 7), struct.pack("<IIQQI", 1, 0, 7, 0, 0)])
def test_a_malformed_query(data: bytes) -> None:
    with pytest.raises(DecodeError):
        apple.parse_query(data)


def test_the_answer_holds_what_was_asked_for_in_order() -> None:
    server, volume = int(ServerCaps.UNIX_BASED | ServerCaps.NFS_ACE), int(VolumeCaps.FULL_SYNC)
    whole = apple.pack_server(0x1F, server, volume, "RackMac")
    assert whole == struct.pack("<IIQQQII", 1, 0, 7, 12, 4, 0, 14) + "RackMac".encode("utf-16-le")
    assert apple.pack_server(Asked.VOLUME_CAPS, server, volume, "RackMac") == struct.pack("<IIQQ", 1, 0, 2, 4)
    assert apple.pack_server(0, server, volume, "RackMac") == struct.pack("<IIQ", 1, 0, 0)


def test_finder_information_has_60_bytes() -> None:
    packed = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo(finder_info=FINDER))
    assert packed == b"AFP\0" + struct.pack(">III", 0x100, 0, 0x80000000) + FINDER + bytes(12)
    found = apple.parse_afp_info(packed)
    assert found is not None and found.finder_info == FINDER
    assert apple.parse_afp_info(packed[:59]) is None
    assert apple.parse_afp_info(b"XFP\0" + packed[4:]) is None
    assert apple.parse_afp_info(apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo())) is None


def test_an_entry_holds_fork_type_flags_and_date() -> None:
    made = 946684800 + 0x01020304
    assert apple.pack_entry(3, FINDER, True, made) == struct.pack("<Q", 3) + (
        b"TEXTttxt" + b"\x40\x01" + b"\x80\x02" + b"\x01\x02\x03\x04"
    )
    # The first bytes of a folder's are the place of its window.
    assert apple.pack_entry(0, FINDER, False, made)[8:16] == bytes(8)
    # The date of a file without Finder information is not known.
    assert apple.pack_entry(5, bytes(32), True, made) == struct.pack("<Q12xI", 5, 0x80)
    assert len(apple.pack_entry(1, FINDER, True, -(1 << 40))) == len(apple.pack_entry(1, FINDER, True, 1 << 40)) == 24
