"""What Macs and other servers have left of a file, and what Macs send: AppleDouble, AFP_AfpInfo and AAPL."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from smb3server.backends.local import apple_double
from smb3server.wire import apple
from smbdirect.errors import DecodeError
from tools.fuzz.target import Target, Wrong

FINDER = b"TEXTttxt".ljust(32, b"\0")


def make(finder: bytes = FINDER, attributes: dict[str, bytes] | None = None, fork: bytes = b"") -> bytes:
    """Return an AppleDouble file as macOS writes it."""
    start = 26 + 2 * 12
    if attributes is not None:
        names = [name.encode() + b"\0" for name in attributes]
        at = start + 32 + 2 + 36 + sum(-(-(11 + len(name)) // 4) * 4 for name in names)
        entries, values = b"", b""
        for name, value in zip(names, attributes.values(), strict=True):
            entry = struct.pack(">IIHB", at + len(values), len(value), 0, len(name)) + name
            entries += entry.ljust(-(-len(entry) // 4) * 4, b"\0")
            values += value
        sizes = at + len(values), at, len(values)
        finder += b"\0\0" + struct.pack(">4sIIII12sHH", b"ATTR", 0, *sizes, bytes(12), 0, len(names)) + entries + values
    header = struct.pack(">II16sH", 0x00051607, 0x00020000, b"Mac OS X".ljust(16), 2)
    header += struct.pack(">III", 9, start, len(finder)) + struct.pack(">III", 2, start + len(finder), len(fork))
    return header + finder + fork


def _run(data: bytes) -> None:
    apple.parse_afp_info(data[:60])
    try:
        apple.parse_query(data[:24])
    except DecodeError:
        # The rest may still be AppleDouble.
        if len(data) < 26:
            raise
    found = apple_double.parse(data, len(data))
    if found.fork_size and found.fork_offset + found.fork_size > len(data):
        raise Wrong("the resource fork reaches beyond the end")
    if len(found.finder_info) not in (0, 32) or any(len(value) > len(data) for _, value in found.attributes):
        raise Wrong(f"{found} out of {len(data)} bytes")


def _seeds() -> Iterator[bytes]:
    yield make()
    yield make(attributes={"com.apple.metadata:_kMDItemUserTags": b"tags", "foo": b"bar"}, fork=b"fork" * 20)
    yield struct.pack("<IIQQ", 1, 0, 7, 1)
    yield struct.pack("<IIQ", 2, 0, 99)


TARGET = Target(_run, _seeds, declared=(DecodeError,), max_input=1024)
