"""``smb3server status``: tables that lose nothing on any screen, filters, finding servers, the live screen."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import os
import pty
import re
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from smb3server.admin.socket import AdminSocket
from smb3server.cli.main import main as cli_main
from smb3server.cli.status.layout import Cell, Column, Table, fit, paragraph
from smb3server.cli.status.live import screen
from smb3server.cli.status.selection import Selection
from smb3server.cli.status.tables import _TABLES, render
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.status.model import Report
from smb3server.status.rates import add_rates
from smb3server.status.report import collect
from smb3server.wire.create import CreateDisposition
from tests.lab.scene import Scene, log_on, play

ALL = ("sessions", "channels", "shares", "users", "files", "locks", "interfaces")
LONG = "a folder with a long name/another folder/" + "x" * 150
WIDE = "文件" * 30


async def busy(acted: Scene) -> Report:
    """Make a server with sessions over TCP and iWARP, opens, locks and traffic, and return its report with rates."""
    server = acted.service.server
    before = collect(server, files=False)
    for client in (await acted.tcp(), await acted.rdma()):
        tree = await (await log_on(client)).tree_connect("data")
        file = await tree.create("a file", READ_WRITE, CreateDisposition.OPEN_IF, share=7)
        await tree.write(file, 0, bytes(100_000))
        await tree.read(file, 0, 100_000)
        await tree.create(WIDE, READ_WRITE, CreateDisposition.OPEN_IF, share=7)
    opened = next(entry for entry in server.opens.by_id.values() if entry.path == ("a file",))
    assert opened.file is not None
    opened.file.locks.acquire(opened, 1 << 40, 4096, True)
    report = collect(server, acted.service.addresses())
    add_rates(report, before)
    # Longer than anything of this test's own server.
    report.sessions[0].opens[0].path = LONG
    report.sessions[0].user = "EXAMPLE.COM\\a.user.with.a.very.long.name"
    report.channels[0].peer = "[2001:db8:1234:5678:9abc:def0:1234:5678]:50123"
    return copy.deepcopy(report)


def cells(report: Report) -> list[str]:
    tables = [table for make in _TABLES.values() for table in make(report)]
    found = [cell.text if isinstance(cell, Cell) else cell for table in tables for row in table.rows for cell in row]
    return [cell for cell in found if cell != "-"]


@pytest.mark.parametrize("width", [80, 100, 160, 40])
def test_every_table_fits_and_loses_nothing(tmp_path: Path, width: int) -> None:
    async def scene(acted: Scene) -> None:
        report = await busy(acted)
        lines = [line.plain for line in render(report, width, ALL)]
        assert max(cell_len(line) for line in lines) <= width
        squeezed = re.sub(r"\s", "", "".join(lines))
        # What is too long for a column goes on in the next line, between other cells.
        words = [word for cell in cells(report) for word in cell.split() if len(word) < 12]
        assert len(words) > 100
        assert [word for word in words if width >= 80 and word not in squeezed] == []
        assert squeezed.count("x") >= 150
        assert squeezed.count("文") >= 2 * 30

    play(tmp_path, scene)


def test_columns_without_room_go_below() -> None:
    columns = (Column("name", fixed=True, wraps=True), Column("size", right=True, fixed=True), Column("more"))
    table = Table("Things", columns)
    table.add("a" * 10, "1", "b" * 10)
    table.add("c" * 40, "20", "-")
    assert fit(table, 200)[0].plain == "Things (2)"
    assert [line.plain for line in fit(table, 30)] == [
        "Things (2)",
        "name                      size",
        "aaaaaaaaaa                   1",
        "    more bbbbbbbbbb",
        "cccccccccccccccccccccccc    20",
        "cccccccccccccccc",
    ]
    assert [line.plain for line in fit(table, 60, most=1)][-1] == "    and 1 more"
    assert fit(Table("None", columns), 10)[0].plain == "None (0)"


def test_paragraphs() -> None:
    assert paragraph("one two three", 7) == ["one two", "three"]
    assert paragraph("x" * 10, 4) == ["xxxx", "xxxx", "xx"]
    assert paragraph("one two three", 8, "  ") == ["one two", "  three"]
    assert paragraph("", 8) == [""]


def test_filters(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        report = await busy(acted)
        report.sessions[1].user = "DOM\\Bob"
        report.sessions[1].client = "192.0.2.7"
        by_user = Selection(user="bob").apply(report)
        assert [entry.user for entry in by_user.sessions] == ["DOM\\Bob"]
        assert [entry.channel for entry in by_user.channels] == report.sessions[1].channels
        assert by_user.locks == []
        by_client = Selection(client="192.0.2.7").apply(report)
        assert [entry.client for entry in by_client.sessions] == ["192.0.2.7"]
        by_share = Selection(share="DATA").apply(report)
        assert len(by_share.sessions) == 2
        assert [entry.share for entry in by_share.shares] == ["data"]
        nothing = Selection(share="other").apply(report)
        assert (nothing.sessions, nothing.channels, nothing.locks) == ([], [], [])
        assert Selection().apply(report) is report

    play(tmp_path, scene)


def cut_off(*arguments: str) -> str:
    """Return what the first read gets of a command, whose reader then goes away as ``grep -q`` does."""
    with subprocess.Popen([sys.executable, "-m", "smb3server", *arguments], stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        first = os.read(asking.stdout.fileno(), 1 << 16)
        asking.stdout.close()
        assert asking.wait() == 0
    return first.decode()


def test_sections_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(acted: Scene) -> None:
        await busy(acted)
        state = ["--state", str(tmp_path / "state")]

        async def asked(*arguments: str) -> str:
            assert await asyncio.to_thread(cli_main, ["status", *state, *arguments]) == 0
            return capsys.readouterr().out

        whole = json.loads(await asked("--json", "--rates", "0.05"))
        assert (whole["schema"], whole["pid"]) == (2, os.getpid())
        assert whole["server"]["rates"]["read"] == 0.0
        assert "rates" not in json.loads(await asked("--json", "--rates", "0"))["server"]
        locks = json.loads(await asked("locks", "--json", "--rates", "0"))
        assert set(locks) == {"schema", "pid", "server", "locks"}
        text = await asked("--locks", "--rates", "0")
        assert "Byte-range locks (1)" in text
        assert "Open files (4)" in text
        assert "Channels" not in text
        assert "1099511627776" in text
        assert "Interfaces as clients see them" in await asked("interfaces", "--rates", "0")
        assert "Open files (4)" in await asyncio.to_thread(cut_off, "status", *state, "--rates", "0")

    play(tmp_path, scene)


def test_choosing_among_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("smb3server.admin.socket.runtime_directory", lambda: tmp_path / "run")
    monkeypatch.setattr("smb3server.cli.running_server.USERS_RUNTIME_DIRECTORIES", tmp_path / "users")
    assert cli_main(["status"]) == 3
    assert "no server found; start one" in capsys.readouterr().err

    async def scene(acted: Scene) -> None:
        report = collect(acted.service.server)
        (tmp_path / "run").chmod(0o700)
        commands = {"ping": lambda _: {"pid": 4711}, "status": lambda _: replace(report, pid=4711)}
        other = AdminSocket(tmp_path / "run" / "other.sock", commands)
        await other.start()
        try:
            assert await asyncio.to_thread(cli_main, ["status"]) == 2
            said = capsys.readouterr().err
            assert f"--pid {os.getpid()}" in said
            assert "--pid 4711" in said
            assert await asyncio.to_thread(cli_main, ["status", "--pid", "4711", "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["pid"] == 4711
            assert await asyncio.to_thread(cli_main, ["status", "--pid", "1"]) == 3
            assert "no server with process id 1" in capsys.readouterr().err
            assert await asyncio.to_thread(cli_main, ["status", "--all", "--json", "--rates", "0"]) == 0
            every = json.loads(capsys.readouterr().out)["servers"]
            assert {entry["pid"] for entry in every} == {os.getpid(), 4711}
            assert await asyncio.to_thread(cli_main, ["status", "--all", "--watch"]) == 2
        finally:
            await other.close()

    play(tmp_path, scene)


def test_lines_into_a_pipe(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await busy(acted)
        process = await asyncio.create_subprocess_exec(
            *("env", "--default-signal=INT", sys.executable, "-m", "smb3server", "status"),
            *("--state", str(tmp_path / "state"), "--watch", "0.2"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        for _ in range(2):
            line = (await process.stdout.readline()).decode()
            assert re.fullmatch(
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \S+: 0 B/s read, 0 B/s written, 0 requests/s;"
                r" sessions 2, channels 2, opens 4\n",
                line,
            ), line
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        await process.stdout.read()

    play(tmp_path, scene)


@pytest.mark.parametrize("height", [50, 24, 10, 3])
def test_a_screen_says_what_it_leaves_out(tmp_path: Path, height: int) -> None:
    async def scene(acted: Scene) -> None:
        report = await busy(acted)
        console = Console(width=80, height=height, record=True, file=io.StringIO())
        console.print(screen(report, 80, height, (), " footer"))
        lines = console.export_text().splitlines()
        assert len(lines) <= height
        assert "footer" in lines[-1]
        if height < 24:
            assert "the screen is too small for the rest" in lines[-2]

    play(tmp_path, scene)


def _read_until(descriptor: int, wanted: bytes, seconds: float = 15) -> bytes:
    found = b""
    deadline = time.monotonic() + seconds
    while wanted not in found:
        left = deadline - time.monotonic()
        assert left > 0, found[-2000:]
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            ready = selector.select(left)
        if ready:
            found += os.read(descriptor, 1 << 16)
    return found


@pytest.mark.parametrize("end", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_live_screen(tmp_path: Path, end: bytes) -> None:
    """It follows the size of the terminal, ends by a key, and leaves the terminal as it was."""

    async def scene(acted: Scene) -> None:
        await busy(acted)
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        before = termios.tcgetattr(theirs)

        def look() -> None:
            process = subprocess.Popen(
                [
                    *("env", "--default-signal=INT", "setsid", "--ctty", sys.executable, "-m", "smb3server", "status"),
                    *("--state", str(tmp_path / "state"), "--watch", "30"),
                ],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                # COLUMNS and LINES, which test runners set, would be the size of the screen.
                env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
                | {"TERM": "xterm"},
            )
            try:
                _read_until(ours, b"q quits")
                ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
                # Not before the next report: the same one on the new screen.
                _read_until(ours, b"q quits", 10)
                os.write(ours, end)
                assert process.wait(10) == 0
                assert b"Traceback" not in os.read(ours, 1 << 16)
            finally:
                process.kill()
                process.wait()

        await asyncio.to_thread(look)
        assert termios.tcgetattr(theirs)[3] == before[3]
        os.close(ours)
        os.close(theirs)

    play(tmp_path, scene)
