"""What a fuzzing target is, and what counts as a finding. Nothing here needs atheris.

A target hands one input to one subject. The subject may raise its declared errors and nothing else, and it has
``SLOWEST`` seconds of processor time and ``ALLOWANCE`` bytes of new memory for it.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SLOWEST = 1.0
"""Seconds of processor time for one input."""
ALLOWANCE = 48 << 20
"""Bytes of address space for one input. A length that is believed before it is checked asks for more: up to 4 GiB."""
MAX_INPUT = 4096
"""Bytes of an input, unless the target says otherwise."""
_PAGE = os.sysconf("SC_PAGE_SIZE")

Mutate = Callable[[bytes, int, random.Random, Callable[[bytes], bytes]], bytes]
"""Returns a changed input of at most so many bytes. The last argument is the fuzzer's own mutation of some bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """One subject of the fuzzer."""

    run: Callable[[bytes], None]
    """Processes one input."""
    seeds: Callable[[], Iterable[bytes]]
    """Returns valid inputs, from which the fuzzer starts."""
    declared: tuple[type[Exception], ...] = ()
    """The errors by which the subject refuses an input."""
    mutate: Mutate | None = None
    """A mutation that knows the structure of the input. None: the fuzzer's own."""
    max_input: int = MAX_INPUT


class Finding(Exception):
    """An input does what it must not. ``place`` is the same for inputs with the same cause."""

    def __init__(self, kind: str, place: str, detail: str) -> None:
        super().__init__(f"{kind} at {place}\n{detail}")
        self.kind = kind
        self.place = place


class Wrong(Exception):
    """A target has seen a result that the subject must not have."""


class _Slow(BaseException):
    """Ends an input that takes too long. No ``except Exception`` of the subject can stop it."""


class _Logged(logging.Handler):
    """Keeps what the subject logs as an error: it has caught something that it does not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


_logged = _Logged()


def prepare() -> None:
    """Make the process ready for ``judge``. To be called once, on its main thread."""
    signal.signal(signal.SIGVTALRM, _stop)
    root = logging.getLogger()
    if _logged not in root.handlers:
        root.handlers[:] = [_logged]
    root.setLevel(logging.INFO)
    # Its decoders log what they refuse. The server silences it as well.
    logging.getLogger("impacket").setLevel(logging.CRITICAL)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Slow


@contextmanager
def _limited() -> Iterator[None]:
    """Limit processor time and memory."""
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[0]) * _PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWANCE, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOWEST)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))


def judge(target: Target, data: bytes) -> None:
    """Run one input. Raises ``Finding``."""
    _logged.records.clear()
    try:
        with _limited():
            target.run(data)
    except target.declared:
        pass
    except _Slow as error:
        raise _found("too slow", error) from error
    except MemoryError as error:
        raise _found("too much memory", error) from error
    except Exception as error:
        raise _found(type(error).__name__, error) from error
    for record in _logged.records:
        if record.exc_info and record.exc_info[1] is not None:
            raise _found(f"logged {type(record.exc_info[1]).__name__}", record.exc_info[1])
        raise Finding("logged error", f"{record.module}:{record.funcName}", record.getMessage())


def _found(kind: str, error: BaseException) -> Finding:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tools/fuzz/target.py" not in frame[0]]
    last = frames[-1] if frames else None
    place = f"{os.path.relpath(last.filename)}:{last.name}:{last.line}" if last is not None else "nowhere"
    return Finding(kind, place, "".join(traceback.format_exception(error)))


def choice(subjects: Sequence[Callable[[memoryview], object]]) -> Callable[[bytes], None]:
    """Return a ``Target.run`` whose input's first byte chooses the subject for the rest of it."""

    def run(data: bytes) -> None:
        if data:
            subjects[data[0] % len(subjects)](memoryview(data)[1:])

    return run


def each_choice(subjects: Sequence[object], inputs: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the inputs once for each subject of ``choice``: it is for the fuzzer to see which fit."""
    for data in inputs:
        for number in range(len(subjects)):
            yield bytes((number,)) + data
