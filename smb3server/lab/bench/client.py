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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from smb3server.lab.bench.accounting import others_share, read_machine, server_seconds
from smb3server.lab.bench.cases import CREATED, PASSWORD_VARIABLE, Case
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import Sample, fairness

USER, PASSWORD, SHARE = "games", "Passw0rd", "perf"
_SOURCE = Path(__file__).parent / "labgen.c"
_GRACE = 60.0
"""Seconds that a client may take in addition to those of the measurement."""
_STARTED = "START"
"""Line that labgen prints when its connections are established; it begins to count when it gets a line."""


class Target(NamedTuple):
    """A server under test."""

    name: str
    process: int
    """Its process; 0 if it has none of its own, and its processor time is not counted."""
    host: str
    port: int
    folder: Path | None
    """The folder that it shares; None if that is out of reach."""
    options: tuple[str, ...] = ()
    """What the client needs to speak with it."""
    generator: tuple[str, ...] = ()
    """A command that takes labgen's options and makes the load in its place."""
    ports: Mapping[str, int] = {}
    """Its ports by the kind of transport."""
    share: str = SHARE
    user: str = USER
    password: str = PASSWORD


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
        self.seconds = seconds
        self._megabytes = megabytes
        self._prefix = prefix
        self._roots = roots
        """The processes that started everything of this run."""
        self._processors = len(os.sched_getaffinity(0))

    def measure(self, target: Target, case: Case) -> Sample:
        """Run ``case`` once. Raises ``BenchError`` if the client fails or the server refuses a request."""
        try:
            with self.connected(target, (*case.options, "-T", str(self.seconds))) as running:
                before = read_machine(self._roots)
                spent = server_seconds(target.process) if target.process else 0.0
                found = running.count()
                # The connections were there before and are still there: connecting and closing are not counted.
                spent = server_seconds(target.process) - spent if target.process else 0.0
        except BenchError as error:
            raise BenchError(f"{target.name}: {case.name}: {error}") from None
        finally:
            self.tidy(target)
        if found["errs"] or not found["ops"]:
            raise BenchError(f"{target.name}: {case.name}: {found['errs']} errors in {found['ops']} operations")
        others = others_share(before, read_machine(self._roots), self._processors)
        rate = found["MB_s"] if case.unit == "MB/s" else found["ops_s"]
        each = found["each"]
        return Sample(
            float(rate),
            spent / found["ops"] * 1e6,
            others,
            found["p50_us"],
            found["p99_us"],
            fairness(each),
            min(each) / max(each),
            found["bs"],
        )

    def tidy(self, target: Target) -> None:
        """Remove the files that "create + close" left behind in a folder within reach."""
        for left in target.folder.glob(CREATED) if target.folder is not None else ():
            left.unlink(missing_ok=True)

    @contextlib.contextmanager
    def holding(self, target: Target, connections: int) -> Iterator[None]:
        """Keep ``connections`` logged on and idle during a ``with`` block. Raises ``BenchError`` if one is refused."""
        with self.connected(target, ("-t", "idle", "-N", str(connections), "-T", "0")) as running:
            running.count()
            yield

    @contextlib.contextmanager
    def connected(self, target: Target, options: Sequence[str]) -> Iterator[Running]:
        """Start a client and yield it once all its connections are there; it ends with the ``with`` block."""
        command = [*self._prefix, *(target.generator or (str(self._program),)), *target.options]
        command += ["-h", target.host, "-p", str(target.port), "-s", target.share, "-u", target.user]
        command += ["-z", str(self._megabytes), *options]
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | {PASSWORD_VARIABLE: target.password},
            )
            watchdog = threading.Timer(self.seconds + _GRACE, process.kill)
            # A signal may end the run while the thread starts: it must not keep the interpreter from ending.
            watchdog.daemon = True
            running = Running(process, errors)
            try:
                watchdog.start()
                running.expect(_STARTED)
                yield running
                running.end()
            finally:
                watchdog.cancel()
                with contextlib.suppress(ProcessLookupError):
                    # Ends the client's children, too, if it was stopped early.
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        with contextlib.suppress(BrokenPipeError):
                            pipe.close()


class Running:
    """A client that is connected."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def expect(self, beginning: str) -> str:
        """Return the client's next line. Raises ``BenchError``, with what the client said, if it is another one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(beginning):
            raise self._failure()
        return line

    def count(self) -> dict[str, Any]:
        """Let the client do its work and return what it found."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has failed, and ``expect`` tells why.
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self.expect("{"))
        return found

    def end(self) -> None:
        """Let the client close its connections. Raises ``BenchError`` if it did not end well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait():
            raise self._failure()

    def _failure(self) -> BenchError:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().replace("\n", " | ")
        return BenchError(said or f"the client ended with status {status}")
