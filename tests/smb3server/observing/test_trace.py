"""Traces of clients, as tshark reads them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from smb3server.observing.pcapng import Conversation, header
from smb3server.observing.trace import Trace, TraceError, Traces, Wanted, parse_client
from smb3server.wire.create import Access, CreateDisposition
from tests.lab.harness import Lab, lab

ACCESS = int(Access.READ_DATA | Access.WRITE_DATA)
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
HERE = parse_client("127.0.0.1")


def play(root: Path, body: Callable[[Lab, Traces], Awaitable[None]]) -> None:
    async def run() -> None:
        async with lab(root) as scene:
            traces = Traces(scene.server)
            await body(scene, traces)
            traces.end_all()
            assert scene.server.watcher is None

    asyncio.run(run())


def tshark(path: Path, *fields: str, wanted: str = "smb2") -> list[list[str]]:
    command = ["tshark", "-n", "-r", str(path), "-Y", wanted, "-T", "fields"]
    for name in fields:
        command += ["-e", name]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in found.stdout.splitlines()]


async def use(scene: Lab, **options: bool) -> None:
    async with scene.session(**options) as session:
        tree = await session.tree_connect("share")
        file = await tree.create("f", ACCESS, CreateDisposition.OPEN_IF)
        await tree.write(file, 0, b"secret content " * 20_000)
        await tree.read(file, 0, 300_000)
        await tree.close(file)
        await session.log_off()


@needs_tshark
def test_wireshark_reads_a_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.pcapng"

    async def body(scene: Lab, traces: Traces) -> None:
        trace = traces.begin(Wanted(HERE, path))
        await use(scene)
        traces.end(trace, "enough")
        await use(scene)

    caplog.set_level(logging.WARNING)
    play(tmp_path, body)
    commands = [(int(command), reply) for command, reply in tshark(path, "smb2.cmd", "smb2.flags.response")]
    assert commands[0] == (0, "0")
    assert [number for number, reply in commands if reply == "1"][-1] == 2
    assert {number for number, _ in commands} >= {0, 1, 2, 3, 5, 6, 8, 9}
    assert not tshark(path, "frame.number", wanted="_ws.malformed or tcp.analysis.flags")
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [entry.getMessage() for entry in caplog.records if entry.name.endswith("trace")]
    assert "begins" in lines[0]
    assert lines[1].endswith("enough")


@needs_tshark
@pytest.mark.parametrize("decrypt", [False, True])
def test_sealed_messages_are_opened_on_request(tmp_path: Path, decrypt: bool) -> None:
    path = tmp_path / "t.pcapng"

    async def body(scene: Lab, traces: Traces) -> None:
        traces.begin(Wanted(HERE, path, decrypt))
        await use(scene, sign=True, encrypt=True)

    play(tmp_path, body)
    raw = path.read_bytes()
    assert (b"secret content " in raw) is decrypt
    assert (b"\xfdSMB" in raw) is not decrypt
    if decrypt:
        commands = tshark(path, "smb2.cmd", "smb2.flags.response")
        # The answer to LOGOFF is sealed by a session that has ended.
        assert commands[-1] == ["2", "1"]
        assert not tshark(path, "frame.number", wanted="_ws.malformed")


def test_messages_of_smb_direct_are_traced(tmp_path: Path) -> None:
    path = tmp_path / "t.pcapng"

    async def body(scene: Lab, traces: Traces) -> None:
        trace = traces.begin(Wanted(parse_client("0.0.0.0/0"), path))
        await use(scene, rdma=True)
        async with asyncio.timeout(10):
            while scene.server.connection_list:
                await asyncio.sleep(0.005)
        assert trace.messages >= 14

    play(tmp_path, body)
    assert b"loopback" in path.read_bytes()


def test_a_connection_under_way_is_traced_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "t.pcapng"

    async def body(scene: Lab, traces: Traces) -> None:
        async with scene.tree() as tree:
            file = await tree.create("f", ACCESS, CreateDisposition.CREATE)
            (connection,) = scene.server.connection_list
            plain = connection.transport.send
            trace = traces.begin(Wanted(HERE, path))
            await tree.write(file, 0, b"z" * 500_000)
            assert trace.messages >= 2
            traces.end(trace, "enough")
            count = trace.messages
            assert connection.transport.send == plain
            assert await tree.read(file, 0, 100) == b"z" * 100
            assert trace.messages == count

    play(tmp_path, body)
    assert path.read_bytes().count(b"z" * 1000) > 100


def test_other_clients_are_not_traced(tmp_path: Path) -> None:
    async def body(scene: Lab, traces: Traces) -> None:
        trace = traces.begin(Wanted(parse_client("192.0.2.0/24"), tmp_path / "t"))
        await use(scene)
        assert trace.messages == 0

    play(tmp_path, body)


def test_files_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "t"

    async def body(scene: Lab, traces: Traces) -> None:
        trace = traces.begin(Wanted(HERE, path, max_size=400_000))
        await use(scene)
        await use(scene)
        await use(scene)
        traces.end(trace, "enough")
        assert not trace._file

    play(tmp_path, body)
    assert (tmp_path / "t.1").stat().st_size > 400_000
    # Each can be read on its own.
    assert path.read_bytes()[:4] == (tmp_path / "t.1").read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"


def test_mistakes_are_named(tmp_path: Path) -> None:
    async def body(scene: Lab, traces: Traces) -> None:
        traces.begin(Wanted(HERE, tmp_path / "t"))
        for wanted, told in (
            (Wanted(HERE, tmp_path / "u"), "is traced to"),
            (Wanted(parse_client("192.0.2.1"), tmp_path / "t"), "another trace"),
            (Wanted(parse_client("192.0.2.1"), tmp_path / "none" / "t"), "No such file"),
            (Wanted(parse_client("192.0.2.1"), tmp_path / "share"), "exists; remove it"),
            (Wanted(parse_client("192.0.2.1"), tmp_path / "u", seconds=1e9), "lasts up to"),
        ):
            with pytest.raises(TraceError, match=told):
                traces.begin(wanted)

    play(tmp_path, body)
    with pytest.raises(TraceError, match="is not a client"):
        parse_client("alice")


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: Trace, path: Path) -> BinaryIO:
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr(Trace, "_make", make)

    async def body(scene: Lab, traces: Traces) -> None:
        trace = traces.begin(Wanted(HERE, tmp_path / "t"))
        await use(scene)
        assert "No space left" in trace.ended_by
        assert not traces.running

    play(tmp_path, body)


def test_time_ends_a_trace(tmp_path: Path) -> None:
    async def body(scene: Lab, traces: Traces) -> None:
        trace = traces.begin(Wanted(HERE, tmp_path / "t", seconds=0.01))
        async with asyncio.timeout(10):
            while traces.running:
                await asyncio.sleep(0.005)
        assert trace.ended_by == "time is up"

    play(tmp_path, body)


@needs_tshark
@pytest.mark.parametrize(("client", "server"), [("2001:db8::7", "2001:db8::1"), ("192.0.2.7", "fe80::1%eth0")])
def test_addresses_of_either_family(tmp_path: Path, client: str, server: str) -> None:
    path = tmp_path / "t.pcapng"
    talk = Conversation((client, 50123), server)
    content = (
        header("comment") + talk.beginning(1.5, "who") + talk.message(2.0, False, (b"x" * 100_000,)) + talk.end(3.0)
    )
    path.write_bytes(content)
    found = tshark(path, "ipv6.src", "tcp.srcport", "frame.time_epoch", wanted="tcp.flags.syn == 1")
    assert found[0][0].endswith(client if ":" in client else "::ffff:192.0.2.7")
    assert found[0][1:] == ["50123", "1.500000000"]
    assert not tshark(path, "frame.number", wanted="tcp.analysis.flags")
