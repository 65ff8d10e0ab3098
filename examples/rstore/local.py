"""A store on this machine, for as long as a ``with`` block lasts: a master and memory servers, each a process."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstore.blocking import Store, open_store
from smbdirect import rdma

STARTING = 60.0
"""Seconds that the processes have, on a machine with much else to do. One that ends is noticed at once."""


def _joined(store: Store) -> int:
    """Return how many memory servers there are; none while the master does not answer yet."""
    try:
        return len(store.servers())
    except rdma.ConnectionLost:
        return 0


@contextmanager
def local_store(servers: int, memory: int, fabric: str = "iwarp") -> Iterator[tuple[str, int]]:
    """Start a store of ``servers`` with ``memory`` bytes each, and yield the address of its master."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    program = [sys.executable, str(Path(__file__).parent), "--fabric", fabric, "--master", f"127.0.0.1:{port}"]
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for words in [["master", "--state", f"{folder}/state"], *[["serve", "--memory", str(memory)]] * servers]:
                processes.append(
                    # Ctrl-C is for the program that uses the store. If that is killed, the pipe's end ends these.
                    subprocess.Popen(
                        [*program, "--until-eof", *words],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        process_group=0,
                    )
                )
            with open_store("127.0.0.1", port, fabric) as store:
                deadline = time.monotonic() + STARTING
                while _joined(store) < servers:
                    if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                        raise OSError("the store did not start")
                    time.sleep(0.05)
            yield "127.0.0.1", port
        finally:
            for process in reversed(processes):
                process.kill()
            for process in processes:
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
