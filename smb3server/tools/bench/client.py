"""Build the client labgen.c, and drive one server with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smb3server.tools.bench.accounting import Reading, others_share, read_machine, server_seconds
from smb3server.tools.bench.cases import CREATED, Case
from smb3server.tools.bench.errors import BenchError
from smb3server.tools.bench.figures import Sample

USER, PASSWORD, SHARE = "games", "Passw0rd", "perf"
_SOURCE = Path(__file__).parent / "labgen.c"
_GRACE = 60.0
"""Seconds that a client may take in addition to those of the measurement."""
_STARTED = "START"
"""Line that labgen prints when its connections are established and it begins to count."""


class Target(NamedTuple):
    """A server under test."""

    name: str
    process: int
    host: str
    port: int
    folder: Path
    """The folder that it shares."""


def build(folder: Path) -> Path:
    """Compile the client into ``folder``. Raises ``BenchError`` if compiler or libraries are missing."""
    if shutil.which("cc") is None:
        raise BenchError("no C compiler (Debian: gcc libc6-dev)")
    program = folder / "labgen"
    command = ["cc", "-O2", "-w", "-o", str(program), str(_SOURCE), "-lcrypto"]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        if "openssl/" in ended.stderr or "-lcrypto" in ended.stderr:
            raise BenchError("no OpenSSL 3 to compile the client against (Debian: libssl-dev)")
        raise BenchError(f"cannot compile {_SOURCE.name}:\n{ended.stderr.strip()}")
    return program


class Client:
    """Runs cases against servers, each for ``seconds`` on files of ``megabytes`` MiB."""

    def __init__(self, program: Path, seconds: float, megabytes: int, prefix: Sequence[str], roots: list[int]) -> None:
        self._program = program
        self._seconds = seconds
        self._megabytes = megabytes
        self._prefix = prefix
        self._roots = roots
        """The processes that started everything of this run."""
        self._processors = len(os.sched_getaffinity(0))

    def measure(self, target: Target, case: Case) -> Sample:
        """Run ``case`` once. Raises ``BenchError`` if the client fails or the server refuses a request."""
        command = [*self._prefix, str(self._program), "-h", target.host, "-p", str(target.port), "-s", SHARE]
        command += ["-u", USER, "-w", PASSWORD, "-T", str(self._seconds), "-z", str(self._megabytes), *case.options]
        try:
            found, cost, before = self._run(target, command)
        except BenchError as error:
            raise BenchError(f"{target.name}: {case.name}: {error}") from None
        finally:
            for left in target.folder.glob(CREATED):
                left.unlink(missing_ok=True)
        if found["errs"] or not found["ops"]:
            raise BenchError(f"{target.name}: {case.name}: {found['errs']} errors in {found['ops']} operations")
        others = others_share(before, read_machine(self._roots), self._processors)
        rate = found["MB_s"] if case.unit == "MB/s" else found["ops_s"]
        return Sample(float(rate), cost / found["ops"] * 1e6, others)

    def _run(self, target: Target, command: list[str]) -> tuple[dict[str, Any], float, Reading]:
        """Return the client's output, the server's processor time while the client counted, and the reading before."""
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            watchdog = threading.Timer(self._seconds + _GRACE, process.kill)
            watchdog.start()
            try:
                assert process.stdout is not None
                lines = [process.stdout.readline()]
                spent, before = server_seconds(target.process, 0), read_machine(self._roots)
                lines += process.stdout
                status = process.wait()
            finally:
                watchdog.cancel()
                with contextlib.suppress(ProcessLookupError):
                    # Ends the client's children, too, if it was stopped early.
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            if status or lines[0].strip() != _STARTED or not lines[-1].startswith("{"):
                errors.seek(0)
                raise BenchError(errors.read().strip().replace("\n", " | ") or f"the client ended with status {status}")
        return json.loads(lines[-1]), server_seconds(target.process) - spent, before
