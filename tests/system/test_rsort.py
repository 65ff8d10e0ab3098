"""RSort (examples/rsort): sorted files are those of GNU sort, and nothing is left when processes die in the middle."""

from __future__ import annotations

import bisect
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
import pytest

from tools.support.ports import free_port

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from rsort import cluster  # noqa: E402
from rsort.model import Cluster, Costs, predict  # noqa: E402
from rsort.records import NOTHING, SIZE, generate, in_order, judge, judge_file, records_of  # noqa: E402
from rsort.sockets import socket_servers  # noqa: E402
from rsort.sort import (  # noqa: E402
    InRStore,
    Step,
    WrongOutput,
    bucket_of,
    footprint,
    partition,
    passes,
    sort,
    splitters_of,
)  # fmt: skip
from rstore.local import local_store  # noqa: E402

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
PROGRAM = [sys.executable, str(ROOT / "examples" / "rsort")]


def rsort(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def gnu_sorted(data: bytes) -> bytes:
    command = ["sort", "-s", "-k1.1,1.10"]
    return subprocess.run(command, input=data, env={"LC_ALL": "C"}, capture_output=True, check=True).stdout


def test_any_part_of_a_file_can_be_made_by_itself() -> None:
    whole = generate(0, 40_000, 7)
    assert len(whole) == 40_000 * SIZE and whole.count(b"\r\n") == 40_000
    for first, count in ((0, 1), (16_383, 3), (30_000, 10_000)):
        assert generate(first, count, 7) == whole[first * SIZE : (first + count) * SIZE]
    assert generate(0, 10, 8) != whole[: 10 * SIZE]


def test_the_judge_finds_what_is_wrong() -> None:
    data = np.ascontiguousarray(in_order(records_of(generate(0, 5000, 1)))).tobytes()
    right = judge(data)
    assert (right.records, right.unordered, right.duplicates) == (5000, 0, 0)
    twice = judge(data[:SIZE] + data[:SIZE]) + judge(data[:SIZE])
    assert (twice.duplicates, twice.unordered) == (2, 0)
    assert right.checksum == judge(generate(0, 5000, 1)).checksum
    split = sum((judge(data[at : at + 700 * SIZE]) for at in range(0, len(data), 700 * SIZE)), NOTHING)
    assert split == right
    swapped = data[SIZE : 2 * SIZE] + data[:SIZE] + data[2 * SIZE :]
    assert judge(swapped).unordered == 1 and judge(swapped).checksum == right.checksum
    halves = judge(data[2500 * SIZE :]) + judge(data[: 2500 * SIZE])
    assert halves.unordered == 1, "between two parts"
    assert judge(data[:50] + b"!" + data[51:]).checksum != right.checksum
    with pytest.raises(ValueError, match="not whole records"):
        judge(data[:-1])


def test_buckets_are_done_in_passes_where_memory_is_short() -> None:
    assert list(passes([5, 5, 5, 5], 10)) == [[0, 1], [2, 3]]
    assert list(passes([5, 10, 5], 10)) == [[0], [1], [2]]
    assert list(passes([], 10)) == [[]]
    with pytest.raises(ValueError, match="needs 20 bytes, the store has room for 10"):
        list(passes([5, 20, 5], 10))
    assert [footprint(size, 2) for size in (0, 1, 131_072, 131_073)] == [0, 131_072, 131_072, 262_144]


def test_the_model_counts_bytes_and_calls() -> None:
    """By hand: 10 nodes, 10^9 records of 100 bytes, 10 GB for each node."""
    costs = Costs(counting=1e-8, partition=2e-8, sort=1e-7, transfer=1e-8, task=0.0, allocate=0.001)
    cluster = Cluster(nodes=10, cores=4, network=100, disk=1)
    found = {part.name: part for part in predict(10**9, cluster, costs, 1 << 28)}
    # 10^11 bytes in buckets of 64 MiB are 1491; a disk reads 10 GB in 10 s, 9 GB cross a NIC of 12.5 GB/s in 0.72 s.
    assert found["allocate"].seconds == pytest.approx(1.491)
    assert [found[name].seconds for name in ("count", "shuffle", "sort and write")] == pytest.approx([10, 10, 10])
    assert found["shuffle"].limit == "disk"
    memory = {part.name: part for part in predict(10**9, cluster._replace(disk=0), costs, 1 << 28)}
    # 10^8 records of each node on 4 cores.
    assert memory["count"].seconds == pytest.approx(0.25) and memory["count"].limit == "processor"
    assert (memory["shuffle"].seconds, memory["shuffle"].limit) == (pytest.approx(0.72), "network")
    software = cluster._replace(disk=0, nic_in_hardware=False)
    assert predict(10**9, software, costs, 1 << 28)[2].seconds == pytest.approx(0.75)
    slow = predict(10**9, software, costs._replace(task=0.01), 1 << 28)[3]
    assert (slow.seconds, slow.limit, slow.data) == (pytest.approx(14.91), "control path", pytest.approx(2.75))


def test_it_sorts_as_gnu_sort_does(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    rsort("gen", source, 50_000, "--seed", 3)
    assert rsort("check", source, check=False).returncode == 1
    target.write_text("what was there before")
    found = rsort("sort", source, target, "--workers", 2, "--piece", 700_000, "--check")
    assert "50000 records in" in found.stdout
    assert target.read_bytes() == gnu_sorted(source.read_bytes())
    verdict = rsort("check", target).stdout
    assert "Records: 50000" in verdict and "Duplicate keys: 0" in verdict and "SUCCESS" in verdict
    assert len(list(tmp_path.iterdir())) == 2
    missing = rsort("sort", tmp_path / "missing", tmp_path / "none", check=False)
    assert missing.returncode == 1 and "No such file" in missing.stderr
    assert len(list(tmp_path.iterdir())) == 2


def test_nobody_answers_at_the_schedulers_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_WITHIN", 0.3)
    with pytest.raises(OSError, match="Timed out"), cluster.at_scheduler(f"tcp://127.0.0.1:{free_port()}"):
        pass


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Workers that are threads of this process."""
    with (
        dask.config.set(temporary_directory=str(tmp_path_factory.mktemp("dask"))),
        distributed.Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as found,
    ):
        yield found


Sort = Callable[..., list[Step]]


@pytest.fixture(params=["RStore", "sockets"])
def sorting(request: pytest.FixtureRequest, client: Any) -> Iterator[Sort]:
    """``sort`` with a small store, and with the one that bench compares it with."""
    with ExitStack() as stack:
        if request.param == "RStore":
            memory: Any = InRStore(*stack.enter_context(local_store(2, 2 << 20)))
        else:
            memory = stack.enter_context(socket_servers(2, 2 << 20))
        yield functools.partial(sort, client, memory=memory, report=lambda line: None)


def test_few_different_keys_and_little_memory(tmp_path: Path, sorting: Sort) -> None:
    """Several passes: the store has room for a part of the input."""
    source, target = tmp_path / "in", tmp_path / "out"
    data, few = generate(0, 100_000, 5), random.Random(1)
    source.write_bytes(
        b"".join(b"%010d" % few.randrange(50) + data[at + 10 : at + SIZE] for at in range(0, len(data), SIZE))
    )
    steps = sorting(source, target, buckets=12, piece=3_000_000, check=True)
    assert [step.name for step in steps].count("shuffle") > 1
    assert target.read_bytes() == gnu_sorted(source.read_bytes())


def test_nothing_and_what_cannot_be_sorted(tmp_path: Path, sorting: Sort) -> None:
    source, target, none = tmp_path / "in", tmp_path / "out", tmp_path / "none"
    source.write_bytes(b"")
    sorting(source, target)
    assert target.read_bytes() == b""
    source.write_bytes(b"x" * 150)
    with pytest.raises(ValueError, match="not whole records"):
        sorting(source, none)
    source.write_bytes(generate(0, 1, 1) * 60_000)
    with pytest.raises(ValueError, match="equal keys are in one bucket"):
        sorting(source, none)
    source.write_bytes(generate(0, 1, 1))
    sorting(source, target, check=True)
    assert target.read_bytes() == generate(0, 1, 1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "out"]


def test_an_output_that_is_wrong_never_appears(tmp_path: Path, sorting: Sort, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(generate(0, 5000, 5))
    monkeypatch.setattr("rsort.sort.in_order", lambda records: records[::-1])
    with pytest.raises(WrongOutput, match="out of order"):
        sorting(source, target, check=True)
    assert not target.exists() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("records", [0, 1, 2, 1000])
def test_every_record_is_in_the_bucket_of_its_key(records: int) -> None:
    """Also where keys have the same first 8 bytes, and where splitters are equal."""
    rng = np.random.default_rng(records)
    made = rng.integers(0, 3, (records, SIZE), dtype=np.uint8)
    made[:, :7] = 0
    for buckets in (1, 2, 5, 40):
        splitters = splitters_of(made[:, :10], buckets) if records else np.empty((0, 10), np.uint8)
        edges = [bytes(key) for key in splitters]
        expected = [bisect.bisect_right(edges, bytes(record[:10])) for record in made]
        assert bucket_of(made, splitters).tolist() == expected
        part = partition(made, splitters)
        joined = np.concatenate([in_order(part(bucket)) for bucket in range(len(edges) + 1)])
        assert joined.tobytes() == in_order(made).tobytes()


# -- processes that die ---------------------------------------------------------------------------------------------

RECORDS = 400_000


class Running:
    """A program in a session of its own: all processes that it starts are found by that."""

    def __init__(self, *words: object, **environment: str) -> None:
        command = [*PROGRAM, *map(str, words)]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def until(self, word: str) -> None:
        """Wait for a line of the output that begins with ``word``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return
        raise AssertionError(self.process.communicate()[1])

    def processes(self) -> dict[int, list[str]]:
        """The words of the command lines of the session's processes."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found[int(entry.name)] = words
        return found

    def kill(self, wanted: Callable[[list[str]], bool]) -> None:
        """Kill one of the session's processes."""
        victim = next(pid for pid, words in sorted(self.processes().items()) if wanted(words))
        os.kill(victim, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Wait for the end. Return the status and what it said of its errors. No process is left."""
        _, errors = self.process.communicate(timeout=100)
        deadline = time.monotonic() + 20
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        return self.process.returncode, errors


def a_memory_server(words: list[str]) -> bool:
    return "serve" in words


def the_master(words: list[str]) -> bool:
    return "master" in words


def a_worker(words: list[str]) -> bool:
    return any("spawn_main" in word for word in words)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rsort") / "in"
    rsort("gen", path, RECORDS)
    return path


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where temporary files go; none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield {"TMPDIR": str(folder)}
    assert not list(folder.iterdir())


def is_sorted(target: Path, source: Path) -> bool:
    verdict = judge_file(target)
    return (verdict.records, verdict.unordered, verdict.checksum) == (RECORDS, 0, judge_file(source).checksum)


@pytest.mark.long
@pytest.mark.parametrize("copies", [1, 2])
def test_a_memory_server_dies_in_the_middle(made: Path, tmp_path: Path, copies: int, temporary: dict[str, str]) -> None:
    """The sort ends right, or says that it cannot. It never leaves half a file."""
    target = tmp_path / "out"
    running = Running("sort", made, target, "--workers", 2, "--copies", copies, "--piece", 500_000, "--buckets", 32,
                      **temporary)  # fmt: skip
    running.until("allocate")
    running.kill(a_memory_server)
    status, errors = running.end()
    assert "Traceback" not in errors
    if status:
        assert copies == 1 and "rsort: region" in errors, errors
        assert [entry.name for entry in tmp_path.iterdir()] == ["temporary"]
    else:
        assert is_sorted(target, made)


def test_workers_die_in_the_middle(made: Path, tmp_path: Path, temporary: dict[str, str]) -> None:
    """They are started again, and their tasks run again: the sort ends right."""
    target = tmp_path / "out"
    running = Running("sort", made, target, "--workers", 2, "--piece", 500_000, "--buckets", 32, **temporary)
    running.until("allocate")
    running.kill(a_worker)
    running.until("shuffle")
    running.kill(a_worker)
    status, errors = running.end()
    assert status == 0, errors
    assert is_sorted(target, made) and "Traceback" not in errors


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sort_leaves_nothing(
    made: Path, tmp_path: Path, temporary: dict[str, str], how: signal.Signals
) -> None:
    running = Running("sort", made, tmp_path / "out", "--workers", 2, "--piece", 500_000, "--buckets", 32, **temporary)
    running.until("allocate")
    if how is signal.SIGINT:
        # A terminal's Ctrl-C goes to all processes of its foreground group.
        os.killpg(running.process.pid, how)
    else:
        running.process.send_signal(how)
    status, errors = running.end()
    assert status == 130 and "rsort: interrupted" in errors, errors
    assert "Traceback" not in errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["temporary"]


INTERRUPTED = """
import gc, signal, sys, time
sys.path.insert(0, "examples")
from rstore.interrupts import heed_interrupts
heed_interrupts()
gc.callbacks.append(lambda phase, info: signal.raise_signal(signal.SIGINT) if phase == "start" else None)
try:
    gc.collect()
    gc.callbacks.clear()
    time.sleep(10)
    print("lost")
except KeyboardInterrupt:
    print("seen")
"""


def test_an_interrupt_within_a_collection_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "seen\n" and "KeyboardInterrupt" not in done.stderr, done.stderr


def test_a_killed_sort_leaves_no_processes(made: Path, tmp_path: Path) -> None:
    running = Running("sort", made, tmp_path / "out", "--workers", 2, "--piece", 500_000, TMPDIR=str(tmp_path))
    running.until("allocate")
    assert any(map(the_master, running.processes().values()))
    running.process.kill()
    running.end()
    assert not (tmp_path / "out").exists()


@contextmanager
def store_by_hand(folder: Path, servers: int) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield the port of a store's master, and what kills the master and starts another one."""
    port = free_port()
    program = [sys.executable, str(ROOT / "examples" / "rstore"), "--master", f"127.0.0.1:{port}"]
    processes: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*program, *words], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def start_master() -> None:
        process = start("master", "--state", str(folder / "state"))
        assert process.stdout is not None and process.stdout.readline()
        processes.insert(0, process)

    def replace_master() -> None:
        processes[0].kill()
        start_master()

    try:
        start_master()
        processes.extend(start("serve", "--memory", "64M") for _ in range(servers))
        deadline = time.monotonic() + 20
        while listed(port).count("server ") < servers:
            assert time.monotonic() < deadline, "the store does not start"
        yield port, replace_master
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def listed(port: int) -> str:
    command = [sys.executable, str(ROOT / "examples" / "rstore"), "--master", f"127.0.0.1:{port}", "ls"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.long
def test_the_master_of_the_store_is_killed_and_replaced(made: Path, tmp_path: Path, temporary: dict[str, str]) -> None:
    """The new one reads the names from its state: the sort ends right, and its regions are freed."""
    target = tmp_path / "out"
    with store_by_hand(tmp_path, 2) as (port, replace_master):
        running = Running("sort", made, target, "--workers", 2, "--piece", 500_000, "--buckets", 32,
                          "--store", f"127.0.0.1:{port}", **temporary)  # fmt: skip
        running.until("allocate")
        replace_master()
        status, errors = running.end()
        assert status == 0, errors
        assert is_sorted(target, made)
        assert "region" not in listed(port)


@pytest.mark.long
def test_the_master_of_the_store_is_killed_for_good(made: Path, tmp_path: Path, temporary: dict[str, str]) -> None:
    """Whoever needs it waits ten seconds for another one, then says so."""
    running = Running("sort", made, tmp_path / "out", "--workers", 2, "--piece", 500_000, "--buckets", 32, **temporary)
    running.until("count")
    running.kill(the_master)
    status, errors = running.end()
    assert status == 1 and "rsort: " in errors and "Traceback" not in errors, errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["temporary"]


@pytest.mark.long
def test_a_cluster_that_somebody_has_started(made: Path, tmp_path: Path, temporary: dict[str, str]) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    target = tmp_path / "out"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port),
            "--no-dashboard", "--no-show"]  # fmt: skip
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--nthreads", "1",
              "--local-directory", str(tmp_path / "worker")]  # fmt: skip
    with_examples = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    processes = [subprocess.Popen(dask, env=with_examples, stderr=subprocess.DEVNULL)]
    try:
        processes.append(subprocess.Popen(worker, env=with_examples, stderr=subprocess.DEVNULL))
        found = rsort("sort", made, target, "--scheduler", address, "--workers", 1)
        assert f"{RECORDS} records in" in found.stdout
        assert is_sorted(target, made)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)
