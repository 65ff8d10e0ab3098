"""The machine of a run: its description, its load, and a place for the run's files."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import BUSY, Sample


@contextlib.contextmanager
def workplace(folder: Path, megabytes: int) -> Iterator[Path]:
    """Make a folder for the run inside ``folder``.

    At the end everything is removed that did not exist before. Raises ``BenchError`` if there is too little space.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free >> 20
            place = tempfile.TemporaryDirectory(prefix="bench-", dir=folder)
        except OSError as error:
            raise BenchError(f"--folder {folder}: {error.strerror}") from None
        with place as name:
            if free < megabytes:
                raise BenchError(f"{folder} has {free} MiB, a run takes {megabytes}: --folder, or a smaller --size")
            Path(name).chmod(0o755)
            yield Path(name)
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # Not empty: another program uses it by now.
                path.rmdir()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds ``folder``."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(fields[1]), fields[2]) for fields in mounts if folder.resolve().is_relative_to(fields[1])]
    return max(above)[1] if above else "unknown"


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


def briefly(extent: str) -> str:
    """Return when, on what and with what is measured, in a sentence. ``extent`` says how much is."""
    return (
        f"Measured: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {extent}, on {_processor()}, "
        f"{len(os.sched_getaffinity(0))} processors, Linux {platform.release()}, Python {platform.python_version()}."
    )


class Beginning(NamedTuple):
    """When a run began, and the load before it."""

    at: datetime.datetime
    load: str

    @classmethod
    def now(cls) -> Beginning:
        return cls(datetime.datetime.now(datetime.UTC), _load())


def describe(
    began: Beginning, extent: str, data: str, servers: dict[str, str], samples: Sequence[Sample]
) -> dict[str, str]:
    """Return the circumstances of a run that ends now, in words.

    ``extent`` says how much was measured, ``data`` where the files were.
    """
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    others = [sample.others for sample in samples] or [0.0]
    busy = sum(share > BUSY for share in others)
    return {
        "Measured": f"{began.at:%Y-%m-%d %H:%M} UTC, {extent}",
        "Machine": f"{_processor()}, {len(os.sched_getaffinity(0))} processors, {system}, Linux {platform.release()}; "
        f"{data}",
        **servers,
        "Load": f"average {began.load} before the run and {_load()} after it, the run itself included; other programs "
        f"took {sum(others) / len(others):.1%} of the processors on average, {max(others):.1%} at most, "
        f"more than {BUSY:.0%} in {busy} of {len(others)} measurements",
    }
