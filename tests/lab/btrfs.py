"""A file system of btrfs in a file, for tests of snapshots."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def missing() -> str:
    """Why there can be none here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root: it mounts a file system"
    if shutil.which("mkfs.btrfs") is None or shutil.which("btrfs") is None:
        return "mkfs.btrfs is not installed (package btrfs-progs)"
    if "\tbtrfs\n" not in Path("/proc/filesystems").read_text():
        return "the kernel has no btrfs"
    return ""


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount a new file system, and yield where. ``folder`` gets its image."""
    image, place = folder / "btrfs.image", folder / "btrfs"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        place.chmod(0o755)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
        image.unlink()


def make_subvolume(path: Path) -> None:
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(path)], check=True, capture_output=True)


def make_snapshot(source: Path, target: Path) -> None:
    subprocess.run(
        ["btrfs", "-q", "subvolume", "snapshot", "-r", str(source), str(target)], check=True, capture_output=True
    )


def remove(path: Path) -> None:
    subprocess.run(["btrfs", "-q", "subvolume", "delete", str(path)], check=True, capture_output=True)
