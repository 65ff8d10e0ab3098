"""RStore (examples/rstore): regions in the memory of many servers, and what is left of them when processes die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.etcd import Etcd
from tools.support.ports import free_port

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import rstore  # noqa: E402
from rstore.layout import Extent, Layout, pieces  # noqa: E402

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
MIB = 1 << 20


class Machines:
    """A master and memory servers, each a process."""

    def __init__(self, folder: Path, state: str, fabric: str = "iwarp") -> None:
        self.folder, self.state, self.fabric = folder, state, fabric
        self.port = free_port()
        self.master: subprocess.Popen[str] | None = None
        self.servers: list[subprocess.Popen[str]] = []
        self._logs = (folder / "log").open("w")

    def start(self, *words: str) -> subprocess.Popen[str]:
        program = [sys.executable, str(ROOT / "examples" / "rstore"), "--fabric", self.fabric, "--verbose"]
        process = subprocess.Popen(
            [*program, "--master", f"127.0.0.1:{self.port}", *words],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=self._logs, text=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stdout.readline(), self.log
        return process

    def start_master(self) -> None:
        self.master = self.start("master", "--state", self.state)

    def add(self, count: int = 1, memory: str = "16M") -> None:
        self.servers += [self.start("serve", "--memory", memory) for _ in range(count)]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        for process in [*self.servers, self.master]:
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
        self._logs.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path, str(tmp_path / "state.sqlite"))
    made.start_master()
    yield made
    made.stop()


def until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def opened(machines: Machines, servers: int) -> rstore.Store:
    store = rstore.open_store("127.0.0.1", machines.port, machines.fabric)
    until(lambda: len(store.wait(store._client.servers())) == servers)
    return store


def used(store: rstore.Store) -> int:
    return sum(entry["used"] for entry in store.wait(store._client.servers()))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.mark.parametrize(("size", "unit", "columns"), [(1, 1, 1), (1000, 7, 3), (10_000, 64, 5), (640, 64, 2)])
def test_every_byte_of_a_region_lies_in_one_place(size: int, unit: int, columns: int) -> None:
    layout = Layout("r", size, unit, columns=[[Extent("s", str(number))] for number in range(columns)])
    data = memoryview(bytes(index % 251 for index in range(size)))
    extents = [bytearray(layout.extent_size) for _ in range(columns)]
    for piece in pieces(layout, 0, data):
        whole = b"".join(piece.views)
        extents[piece.column][piece.offset : piece.offset + len(whole)] = whole
    for start in range(0, size, max(1, size // 17)):
        for stop in (start, start + 1, size):
            into = memoryview(bytearray(stop - start))
            for piece in pieces(layout, start, into):
                at = piece.offset
                for view in piece.views:
                    view[:] = extents[piece.column][at : at + len(view)]
                    at += len(view)
            assert into == data[start:stop]
    with pytest.raises(IndexError):
        list(pieces(layout, 1, data))
    assert Layout.unpack(layout.pack()) == layout


def test_a_dict_of_regions(machines: Machines) -> None:
    machines.add(3)
    with opened(machines, 3) as store:
        data = os.urandom(3 * MIB + 17)
        region = store.create("images", len(data), copies=2)
        region[:] = data
        assert region[:] == data and region[1000:1010] == data[1000:1010]
        region[MIB : MIB + 3] = b"new"
        assert store["images"][MIB - 1 : MIB + 4] == data[MIB - 1 : MIB] + b"new" + data[MIB + 3 : MIB + 4]
        assert list(store) == ["images"] and "images" in store and "other" not in store
        with pytest.raises(FileExistsError):
            store.create("images", 1)
        with pytest.raises(rstore.RegionGone):
            store["other"]
        with pytest.raises(IndexError):
            region.read_into(bytearray(2), len(data) - 1)
        with pytest.raises(rstore.StoreRefused, match="in one piece"):
            store.create("large", 1 << 30)
        del store["images"]
        assert list(store) == [] and used(store) == 0
        assert store.create("next", 2 * MIB)[:] == bytes(2 * MIB), "nobody reads what others had"


def test_threads_that_ask_at_the_same_time_share_a_connection(machines: Machines) -> None:
    """None of the first calls of a client ends the connection that another waits on."""
    with rstore.open_store("127.0.0.1", machines.port, machines.fabric) as store:

        async def at_once() -> None:
            async with asyncio.timeout(20):  # Less than a call's time-out.
                assert await asyncio.gather(*(store._client.servers() for _ in range(4))) == [[]] * 4

        store.wait(at_once())


def test_a_freed_region_is_refused_and_left_alone(machines: Machines) -> None:
    machines.add(1)
    with opened(machines, 1) as mine, opened(machines, 1) as other:
        stale = mine.create("r", MIB)
        stale[:] = b"x" * MIB
        del other["r"]
        fresh = other.create("s", MIB)
        with pytest.raises(rstore.RegionGone):
            stale[0:1] = b"!"
        with pytest.raises(rstore.RegionGone):
            stale[0:1]
        assert fresh[:] == bytes(MIB)


def test_two_clients_that_want_one_name(machines: Machines) -> None:
    machines.add(2)
    with opened(machines, 2) as one, opened(machines, 2) as two:
        for number in range(10):
            name = f"r{number}"
            made = []
            for store in (one, two):
                try:
                    made.append(store.create(name, 1000))
                except FileExistsError:
                    assert made
            assert len(made) == 1
        assert sorted(one) == sorted(f"r{number}" for number in range(10))


def test_a_memory_server_is_killed(machines: Machines) -> None:
    machines.add(3)
    with opened(machines, 3) as store:
        data = os.urandom(2 * MIB)
        safe, single = store.create("safe", len(data), copies=2), store.create("single", len(data))
        safe[:] = data
        single[:] = data
        kill(machines.servers[0])
        began = time.monotonic()
        assert safe[:] == data, "the other copies are read"
        safe[100:200] = b"y" * 100
        assert safe[0:300] == data[:100] + b"y" * 100 + data[200:300]
        with pytest.raises(rstore.RegionLost):
            single[:]
        assert time.monotonic() - began < 8
        until(lambda: "region safe is repaired" in machines.log)
        layout = store["safe"]._region.layout
        assert all(len({extent.server for extent in copies}) == 2 for copies in layout.columns)
        kill(machines.servers[1])
        assert safe[0:300] == data[:100] + b"y" * 100 + data[200:300], "the repaired copies are whole"
        del store["single"]
        del store["safe"]
        assert used(store) == 0


def test_a_memory_server_that_hangs_counts_as_dead_within_seconds(machines: Machines) -> None:
    machines.add(2)
    with opened(machines, 2) as store:
        region = store.create("r", MIB, copies=2)
        region[:] = b"z" * MIB
        machines.servers[0].send_signal(signal.SIGSTOP)
        until(lambda: len(store.wait(store._client.servers())) == 1, 8)
        until(lambda: "region r is repaired" in machines.log or "1 copies in place of 2" in machines.log)
        assert store["r"][:] == b"z" * MIB


def test_a_master_is_replaced(machines: Machines) -> None:
    machines.add(2)
    with opened(machines, 2) as store:
        region = store.create("r", MIB, copies=2)
        region[:] = b"a" * MIB
        assert machines.master is not None
        kill(machines.master)
        region[0:3] = b"bbb"
        assert region[0:4] == b"bbba", "the data path needs no master"
        machines.start_master()
        until(lambda: len(store.wait(store._client.servers())) == 2)
        assert store["r"][0:4] == b"bbba"
        with pytest.raises(FileExistsError):
            store.create("r", 1)
        store.create("s", 1000)
        kill(machines.master)
        kill(machines.servers[0])
        machines.start_master()
        until(lambda: "1 copies in place of 2" in machines.log)
        assert store["r"][0:4] == b"bbba"


def test_what_a_killed_client_had_is_free_again(machines: Machines) -> None:
    machines.add(1)
    program = (
        "import sys, time, rstore\n"
        f"store = rstore.open_store('127.0.0.1', {machines.port})\n"
        "store.create('mine', 1000000, keep=False)[0:1] = b'x'\n"
        "store.create('kept', 1000)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    with opened(machines, 1) as store:
        with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None and client.stdout.readline() == b"ready\n"
            assert sorted(store) == ["kept", "mine"]
            client.kill()
        until(lambda: list(store) == ["kept"])
        assert used(store) == store["kept"]._region.layout.extent_size


def test_the_commands(machines: Machines, tmp_path: Path) -> None:
    machines.add(2)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(300_000))

    def rs(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(ROOT / "examples" / "rstore"), "--master", f"127.0.0.1:{machines.port}"]
        return subprocess.run([*program, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False)

    until(lambda: rs("ls").stdout.count("server") == 2)
    assert rs("put", "f", str(source), "--copies", "2").returncode == 0
    assert "region f 300000 bytes, 2 columns, 2 copies, ready" in rs("ls").stdout
    assert rs("get", "f", str(target)).returncode == 0 and target.read_bytes() == source.read_bytes()
    again = rs("create", "f", "1K")
    assert (again.returncode, again.stderr) == (1, "rstore: region f is there already\n")
    assert rs("rm", "f").returncode == 0
    assert "no region f" in rs("rm", "f").stderr


def test_names_in_etcd(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = Etcd(tmp_path / "etcd")
    etcd.start()
    machines = Machines(tmp_path, etcd.url)
    try:
        machines.start_master()
        machines.add(2)
        with opened(machines, 2) as store:
            store.create("r", 1000, copies=2)[0:3] = b"abc"
            assert machines.master is not None
            kill(machines.master)
            machines.start_master()
            until(lambda: len(store.wait(store._client.servers())) == 2)
            assert store["r"][0:4] == b"abc\0"
    finally:
        machines.stop()
        etcd.stop()


def test_memory_that_a_client_lends(machines: Machines) -> None:
    machines.add(2)
    mine = opened(machines, 2)
    with opened(machines, 2) as other:
        own = mine.lend("inbox", 10_000)
        assert len(own) == 10_000 and bytes(own) == bytes(10_000)
        inbox, single = other["inbox"], other.create("single", 100)
        other.write_all([[(inbox, b"data", 5000), (inbox, b"!", 9999)], [(single, b"s", 0)]])
        assert bytes(own[5000:5004]) == b"data" and own[9999] == ord("!") and single[0:1] == b"s"
        own[0:2] = b"me"
        assert inbox[0:2] == b"me"
        with pytest.raises(IndexError):
            other.write_all([[(inbox, b"xx", 9999)], [(single, b"t", 0)]])
        assert own[9999] == ord("!") and single[0:1] == b"t"
        # Nobody else's region is placed there, and it is no server for copies.
        with pytest.raises(rstore.StoreRefused, match="2 memory servers for 3 copies"):
            other.create("copies", 1, copies=3)
        other.create("everywhere", 3 * MIB, copies=2)
        assert bytes(own[0:2]) == b"me"
        with pytest.raises(FileExistsError):
            mine.lend("inbox", 1)
        mine.close()
        until(lambda: "inbox" not in other)
        with pytest.raises((rstore.RegionGone, rstore.RegionLost)):
            inbox[0:1] = b"x"
        until(lambda: len(other.servers()) == 2)
        assert sorted(other) == ["everywhere", "single"]


def test_a_transfer_to_a_server_that_hangs_ends(machines: Machines) -> None:
    machines.add(1)
    with opened(machines, 1) as store:
        region = store.create("r", MIB)
        region[:] = b"z" * MIB
        machines.servers[0].send_signal(signal.SIGSTOP)
        with pytest.raises(rstore.RegionLost):
            region[:]
