"""Two servers of one process, on a thread each, with their worker threads, under load from several threads.

Run it on a Python without the interpreter's lock: ``python -m tools.other_python --python PATH -m long
tests/system/robustness/test_many_threads.py``.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from smb3server.client.sync import connect
from smb3server.testing import Url, serve

pytestmark = pytest.mark.long
THREADS = 4
ROUNDS = 40
LARGE = 3 << 20


@contextmanager
def changing_threads_often() -> Iterator[None]:
    """Let threads take turns a hundred times as often as usual. Without the interpreter's lock they all run anyway."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def forget(path: Path) -> None:
    """Drop what is in the page cache, so that a worker thread of the server reads the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def work(url: Url, folder: Path, number: int) -> int:
    """Do what uses the server's threads and caches, and compare all data. Return the number of rounds."""
    chance = random.Random(number)
    own = f"of-{number}"
    with connect(url, password=url.password, rdma="off") as share:
        share.mkdir(own)
        for turn in range(ROUNDS):
            data = chance.randbytes(chance.choice((100, 70_000, LARGE)))
            name = f"{own}/{turn}.bin"
            with share.open(name, "wb") as file:
                file.write(data)
                file.flush()
            forget(folder / name)
            assert share.read_bytes(name) == data
            share.copy(name, f"{own}/copy.bin")
            assert share.read_bytes(f"{own}/COPY.bin") == data
            share.rename(f"{own}/copy.bin", f"{own}/renamed-{turn}.bin")
            assert {entry.name for entry in share.scandir(own)} >= {f"{turn}.bin", f"renamed-{turn}.bin"}
            if turn % 2:
                share.remove(name)
    return ROUNDS


def test_two_servers_of_one_process_under_load(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with (
        changing_threads_often(),
        serve(folders[0]) as first,
        serve(folders[1]) as second,
        ThreadPoolExecutor(2 * THREADS) as pool,
    ):
        jobs = [
            pool.submit(work, url, folder, number)
            for url, folder in zip((first, second), folders, strict=True)
            for number in range(THREADS)
        ]
        assert [job.result() for job in jobs] == [ROUNDS] * len(jobs)
    for folder in folders:
        assert len(list(folder.glob("of-*/*.bin"))) == THREADS * (ROUNDS + ROUNDS // 2)
