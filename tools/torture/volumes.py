"""File systems for the shares under test: small ones on loop devices if root and the kernel allow it, otherwise
folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_MKFS = {
    # Large inodes: extended attributes (security descriptors, streams) fit in them, as on a real disk's xfs.
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "1024", "-m", "0"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"],
}
_SIZES = {"btrfs": 256 << 20, "ext4": 256 << 20, "xfs": 320 << 20}
"""Bytes. The images are sparse. XFS refuses less than 300 MiB."""


def _run(command: list[str]) -> bool:
    program = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin:/sbin")
    if program is None:
        return False
    result = subprocess.run([program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return result.returncode == 0


@contextlib.contextmanager
def volume(folder: Path, name: str, kind: str) -> Iterator[tuple[Path, bool]]:
    """Make a mounted, empty file system under ``folder``; yield its path, and False if it is only a folder."""
    mount, image = folder / name, folder / f"{name}.img"
    mount.mkdir()
    mounted = False
    if os.geteuid() == 0:
        with image.open("wb") as file:
            file.truncate(_SIZES[kind])
        mounted = _run([*_MKFS[kind], str(image)]) and _run(["mount", "-o", "loop", str(image), str(mount)])
    try:
        mount.chmod(0o777)
        yield mount, mounted
    finally:
        if mounted and not _run(["umount", str(mount)]):
            _run(["umount", "-l", str(mount)])
        image.unlink(missing_ok=True)
