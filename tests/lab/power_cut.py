"""A file system of the kernel that loses power: what had reached its disk at some moment, mounted again.

The disk is a file. Whatever the kernel has not written to it yet is what a loss of power takes. What it has written
counts as stable, flushed or not: a disk that forgets what was not flushed is what ``power_loss`` has, for our formats.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
KINDS = {
    # Without this, ext4 writes the data of a file that replaces another one, or is truncated, before its name.
    "ext4": (64 * MIB, ["-q", "-F"], "noauto_da_alloc"),
    "xfs": (300 * MIB, ["-q"], "defaults"),
    "btrfs": (256 * MIB, ["-q"], "defaults"),
}
"""For each kind: the size of its disk, options of mkfs, options of mount."""
_TRIES = 50


def missing(kind: str) -> str:
    """Say why there can be no such disk here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root: it mounts a file system"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed"
    return "" if f"\t{kind}\n" in Path("/proc/filesystems").read_text() else f"the kernel has no {kind}"


class Disk:
    """A mounted disk, which can be photographed."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.image, self.place = folder / "disk", folder / "mounted"

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Make the file system and mount it at ``place``."""
        size, options, mount_options = KINDS[self.kind]
        with self.image.open("wb") as file:
            file.truncate(size)
        subprocess.run([f"mkfs.{self.kind}", *options, str(self.image)], check=True, capture_output=True)
        self.place.mkdir()
        subprocess.run(["mount", "-o", f"loop,{mount_options}", str(self.image), str(self.place)], check=True)
        try:
            self.place.chmod(0o755)
            yield self.place
        finally:
            subprocess.run(["umount", str(self.place)], check=True)

    def photograph(self, target: Path, process: subprocess.Popen[str] | None = None) -> None:
        """Copy what has reached the disk to ``target``. ``process``: one that writes, and is stopped meanwhile."""
        if process is not None:
            process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(_TRIES):
                subprocess.run(["cp", "--sparse=always", str(self.image), str(target)], check=True)
                # The kernel writes by itself, too. A picture is one moment only if nothing changed while it was taken.
                if filecmp.cmp(self.image, target, shallow=False):
                    return
        finally:
            if process is not None:
                process.send_signal(signal.SIGCONT)
        raise AssertionError(f"the kernel wrote to the disk in each of {_TRIES} copies")

    @contextlib.contextmanager
    def after_loss(self, photograph: Path) -> Iterator[Path]:
        """Mount a photograph at ``place``, as after power has come back. The disk must not be mounted."""
        subprocess.run(["mount", "-o", "loop", str(photograph), str(self.place)], check=True)
        try:
            yield self.place
        finally:
            subprocess.run(["umount", str(self.place)], check=True)
