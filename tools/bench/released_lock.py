"""Show which parts of large reads and writes other threads of the interpreter can run beside.

    python -m tools.bench.released_lock [--size MIB] [--rounds N]

Each part is done once in a thread, with a block so large that it takes milliseconds. The main thread notes the time in
a loop meanwhile. The longest time that it could not, as a share of the part's time, is what the table shows: nearly all
of it if the part keeps the interpreter's lock, nearly nothing if it releases it. A busy machine makes it larger;
therefore the table has the smallest of the rounds.

The last line says how many small reads two threads do in the time in which one thread does one: some microseconds of
Python and a pread each, and one send and one recv for eight of them, as the server does for eight reads in flight.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.crypto.encryption import TAG_SIZE, TRANSFORM_SIZE, SessionCipher
from smb3server.crypto.signing import make_signer
from smb3server.process import output
from smb3server.wire.header import HEADER_SIZE

_KEY = bytes(16)
_SMALL = 4096
_TOGETHER = 8
_TURNS_OF_PYTHON = 400
"""Turns of an empty loop that take about as long as the Python code of a small read."""
_SECONDS = 0.3
"""For each round of small reads."""
Part = Callable[[], object]


@contextlib.contextmanager
def drained() -> Iterator[socket.socket]:
    """Yield a socket whose other end is read by another process."""
    ours, theirs = socket.socketpair()
    reader = os.fork()
    if not reader:
        ours.close()
        with contextlib.suppress(OSError):
            while theirs.recv(1 << 20):
                pass
        os._exit(0)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(reader, 0)


def _send_file(connection: socket.socket, descriptor: int, size: int) -> None:
    done = 0
    while done < size:
        done += os.sendfile(connection.fileno(), descriptor, done, size - done)


def parts(connection: socket.socket, descriptor: int, size: int) -> dict[str, Part]:
    """Return the parts by name; each treats ``size`` bytes, as the server does."""
    header = bytearray(HEADER_SIZE)
    data = memoryview(bytearray(os.urandom(size)))
    other = bytearray(size)
    message = memoryview(bytearray(TRANSFORM_SIZE + size + TAG_SIZE))
    cipher = SessionCipher(Cipher.AES_128_GCM, 1, _KEY, _KEY)
    os.pwrite(descriptor, data, 0)

    def copy() -> None:
        other[:] = data

    found: dict[str, Part] = {
        "pread": lambda: os.preadv(descriptor, [data], 0),
        "pwrite": lambda: os.pwritev(descriptor, [data], 0),
        "send": lambda: connection.sendall(data),
        "sendfile": lambda: _send_file(connection, descriptor, size),
        "a copy in Python": copy,
    }
    for algorithm in SigningAlgorithm:
        signer = make_signer(algorithm, _KEY)
        found[f"{algorithm.name}, one segment"] = partial(signer.sign, (data,), 1)
        found[f"{algorithm.name}, header and data"] = partial(signer.sign, (header, data), 1)
        found[f"{algorithm.name}, a payload"] = partial(signer.sign_payload, data, signer.payload_nonce(1, True))
    found["AES_128_GCM, encryption"] = lambda: cipher.encrypt_in_place(size, message)
    found["AES_128_GCM, decryption"] = lambda: cipher.decrypt(message[: TRANSFORM_SIZE + size])
    return found


def watch(part: Part) -> tuple[float, float]:
    """Do ``part`` in a thread; return its seconds, and the share of them in which this thread had no turn at most."""
    span: list[float] = []

    def work() -> None:
        span.append(time.perf_counter())
        part()
        span.append(time.perf_counter())

    thread = threading.Thread(target=work)
    turns: list[float] = []
    thread.start()
    while len(span) < 2:
        turns.append(time.perf_counter())
    thread.join()
    began, ended = span
    inside = [began, *(turn for turn in turns if began < turn < ended), ended]
    gap = max(later - earlier for earlier, later in itertools.pairwise(inside))
    return ended - began, gap / (ended - began)


def _read_blocks(descriptor: int, until: float) -> int:
    """Do what small reads take until the time ``until``; return how many."""
    ours, theirs = socket.socketpair()
    block = memoryview(bytearray(_SMALL))
    count = 0
    with ours, theirs:
        while time.perf_counter() < until:
            for _ in range(_TOGETHER):
                for _ in range(_TURNS_OF_PYTHON):
                    pass
                os.preadv(descriptor, [block], 0)
            ours.sendmsg([block] * _TOGETHER)
            theirs.recv(_SMALL * _TOGETHER)
            count += _TOGETHER
    return count


def small_reads(threads: int, descriptor: int, seconds: float) -> int:
    """Return how many small reads ``threads`` do together in ``seconds``."""
    with ThreadPoolExecutor(threads) as pool:
        until = time.perf_counter() + seconds
        return sum(pool.map(_read_blocks, [descriptor] * threads, [until] * threads))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.released_lock",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=int, default=128, metavar="MIB", help="size of the block; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.size < 1 or options.rounds < 1:
        parser.error("--size and --rounds must be positive")
    print("| part | µs per MiB | longest time without a turn for others |\n| --- | --- | --- |")
    with drained() as connection, tempfile.TemporaryFile(dir="/dev/shm") as file:
        for name, part in parts(connection, file.fileno(), options.size << 20).items():
            seconds, shares = zip(*(watch(part) for _ in range(options.rounds)), strict=True)
            print(f"| {name} | {min(seconds) / options.size * 1e6:.0f} | {min(shares):.0%} |")
        ratios = [
            small_reads(2, file.fileno(), _SECONDS) / small_reads(1, file.fileno(), _SECONDS)
            for _ in range(options.rounds)
        ]
    print(f"\nsmall reads, two threads to one: {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
