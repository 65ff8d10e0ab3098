"""The disks that the suites of MS-RSVD and MS-SQOS find on the server."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from smb3server.backends.base import Handle
from smb3server.virtual_disks import making, vhd_set

_SIZE = 1 << 30
"""Bytes of the disks. The suite of MS-RSVD expects it."""


class _File:
    """A file of the host, as far as making a disk needs a handle."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def write_from(self, buffers: Sequence[bytes], offset: int) -> int:
        self._file.seek(offset)
        count = sum(self._file.write(buffer) for buffer in buffers)
        self._file.flush()
        return count


def _write(path: Path, make_it: Callable[[Handle, Any], None], what: object) -> None:
    make_it(cast(Handle, _File(path)), what)


def make(folder: Path) -> None:
    """Make the folder with a disk and a VHD set."""
    folder.mkdir()
    folder.chmod(0o777)
    _write(folder / "test.vhdx", making.make, making.Shape(_SIZE))
    _write(folder / "rsvd.avhdx", making.make, making.Shape(_SIZE))
    _write(folder / "rsvd.vhds", vhd_set.make, "rsvd.avhdx")
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, "nobody")
