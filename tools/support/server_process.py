"""This project's server in its own process, with the data that a judge needs: log, memory, processor time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 20.0
_ADDRESS = re.compile(r"(\w+) (127\.0\.0\.\d+):(\d+)")


def open_descriptors(process: int | str = "self") -> int:
    """Return how many descriptors a process has open, without those that it has for some milliseconds: a server opens a
    few when it reads the machine's interfaces, which other programs add and remove."""
    counts = []
    for _ in range(4):
        counts.append(len(os.listdir(f"/proc/{process}/fd")))
        time.sleep(0.005)
    return min(counts)


class ServerFailed(Exception):
    """The server did not start. The text is its log."""


class ServerProcess:
    """A running server; ``running`` makes one."""

    def __init__(self, process: subprocess.Popen[str], log: Path, ready: str) -> None:
        self.process = process
        self.pid = process.pid
        self.log = log
        self.ready = ready
        """The line that lists the served addresses."""
        self.ports = {kind: int(port) for kind, _, port in _ADDRESS.findall(ready)}
        """Port by kind of transport ("tcp", "iwarp", "roce")."""

    @property
    def port(self) -> int:
        """TCP port of SMB."""
        return self.ports["tcp"]

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None

    def log_text(self, start: int = 0) -> str:
        """Return the log from byte ``start`` on."""
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")

    def log_size(self) -> int:
        """Return the log's size in bytes."""
        return self.log.stat().st_size

    def resident(self) -> int:
        """Return the resident memory in bytes; 0 when the process has ended."""
        return self._status("VmRSS")

    def peak_resident(self) -> int:
        """Return the largest resident memory since ``forget_peak``, in bytes; 0 when the process has ended."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """Restart the measurement of ``peak_resident``. [proc(5), clear_refs]"""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status(self, key: str) -> int:
        try:
            text = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    def descriptors(self) -> int:
        """Return the number of open file descriptors."""
        return open_descriptors(self.pid)

    def processor_time(self) -> float:
        """Return the seconds of processor time that all threads have used."""
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(OSError):  # A thread that ended in the meantime.
                total += _on_processor(f"/proc/{self.pid}/task/{task}/schedstat")
        return total / 1e9

    def loop_time(self) -> float:
        """Return the seconds of processor time of the first thread, which runs the event loop."""
        return _on_processor(f"/proc/{self.pid}/task/{self.pid}/schedstat") / 1e9


def _on_processor(path: str) -> int:
    """Return the nanoseconds on a processor: the first number of schedstat.
    [Documentation/scheduler/sched-stats.rst]
    """
    with open(path, "rb") as file:
        return int(file.read().split()[0])


@contextlib.contextmanager
def running(
    folder: Path, config: str, options: Sequence[str] = (), wrapper: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Start the server with ``config`` (TOML) and stop it afterwards.

    Configuration, state and log lie in ``folder``. Only their owner may read the configuration, because it contains
    passwords. ``wrapper`` is a command that runs the server's (prlimit). Raises ``ServerFailed``.
    """
    file, log = folder / "server.toml", folder / "server.log"
    file.touch(mode=0o600)
    file.write_text(config, encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *wrapper,
                sys.executable,
                "-m",
                "smb3server",
                "--config",
                str(file),
                "--state",
                str(folder / "state"),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        yield ServerProcess(process, log, _ready_line(process, log))
    finally:
        stop(process)


def _ready_line(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    limit = threading.Timer(START_SECONDS, process.kill)
    limit.start()
    try:
        for line in process.stdout:
            if line.startswith("ready "):
                return line.rstrip()
    finally:
        limit.cancel()
    raise ServerFailed(log.read_text(errors="replace")[-4000:])


def stop(process: subprocess.Popen[str]) -> int:
    """End the server in order, or by force after ``STOP_SECONDS``. Return its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return status


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports (IPv4) that the process listens on. [proc(5): net/tcp, fd]"""
    sockets = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # Closed in the meantime.
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A" and columns[9] in sockets:
            found.add(int(columns[1].rpartition(":")[2], 16))
    return found
