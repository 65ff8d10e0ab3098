"""CRC-32C, the checksum of images and sets. [MS-VHDX 2.2.2, 2.3.1.1, 2.4]

Loading the library reads the metadata of its installation, which would be a tenth of every server's start.
"""

from __future__ import annotations

import importlib

from smbdirect.codec import Buffer


def load() -> None:
    """Load the library before a request waits for it: a share with shared virtual disks calls this."""
    importlib.import_module("crc32c")


def crc32c(data: Buffer) -> int:
    """Return the checksum of ``data``."""
    from crc32c import crc32c as compute

    return int(compute(data))


def is_intact(data: bytes) -> bool:
    """Return whether the checksum in a structure of VHDX, which is at its bytes 4 to 7, is right."""
    return int.from_bytes(data[4:8], "little") == crc32c(data[:4] + bytes(4) + data[8:])


def sealed(data: bytes) -> bytes:
    """Return a structure of VHDX with its checksum."""
    return data[:4] + crc32c(data[:4] + bytes(4) + data[8:]).to_bytes(4, "little") + data[8:]
