"""The comparisons of examples/: each has a page with markers, rewrites what is between them, and draws a picture."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from smb3server.lab.bench import page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import benches  # noqa: E402
from flashnet import bench as flashnet  # noqa: E402
from rsort import bench as rsort  # noqa: E402
from rsort.sort import Step  # noqa: E402
from rstore import bench as rstore  # noqa: E402
from rstore import compared  # noqa: E402

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
SYSTEMS = sorted(path.parent.name for path in (ROOT / "examples").glob("*/bench.py"))


def a_page(folder: Path, part: str) -> Path:
    file = folder / "page.md"
    file.write_text(f"before\n{page.BEGIN.format(part)}\nold\n{page.END.format(part)}\nafter\n")
    return file


def rewritten(file: Path, part: str) -> str:
    """Return what is between the markers now, and check the rest and the picture."""
    before, _, rest = file.read_text().partition(page.BEGIN.format(part))
    text, _, after = rest.partition(page.END.format(part))
    assert (before, after) == ("before\n", "\nafter\n") and "\nold\n" not in f"{text}\n"
    assert f"](pictures/bench-{part}.svg)" in text
    return text


def words(picture: Path) -> str:
    return "".join(ElementTree.parse(picture).getroot().itertext())


def parse(part: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    benches.add_arguments(parser, part)
    return parser.parse_args(arguments)


# -- pages ----------------------------------------------------------------------------------------------------------


def test_one_command_runs_all_of_them_and_every_page_has_its_markers() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nexamples-bench:")[2].partition("\n\n")[0]
    found = re.findall(r"examples/(\w+) bench --markdown docs/(\w+)\.md", recipe)
    assert len(SYSTEMS) == 4 and sorted(found) == [(name, name) for name in SYSTEMS]
    assert "tools.bench.tcp_or_rdma --page docs/tcp-or-rdma.md" in recipe
    for part in [*SYSTEMS, "tcp-or-rdma"]:
        page.check_page(ROOT / "docs" / f"{part}.md", part)


def test_what_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usable = str(a_page(tmp_path, "x"))
    assert parse("x", "--markdown", usable).markdown == Path(usable) and parse("x").markdown is None
    monkeypatch.setattr(benches, "find_spec", lambda name: None)
    for arguments, said in (
        (("--markdown", usable), "needs matplotlib: pip install matplotlib"),
        (("--markdown", str(tmp_path / "none.md")), "none.md: No such file"),
        (("--rounds", "0"), "a number from 1 up"),
    ):
        with pytest.raises(SystemExit):
            parse("x", *arguments)
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse("y", "--markdown", usable)
    assert "no lines <!-- y: begin -->" in capsys.readouterr().err


def test_a_page_gets_tables_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_page(tmp_path, "x")
    growth = {"ours": [(1, [3.0, 3.5]), (2, [5.0, 6.0])], "theirs": [(1, [1.0]), (2, [2.0])]}
    plots = [
        benches.Lines("growth", "servers", {1: "one", 2: "two"}, growth),
        benches.Bars("cost", {"ours": [1.0, 2.0, 4.0], "others": [3.0]}),
    ]
    benches.publish(parse("x", "--markdown", str(file)), benches.Result("a title", "measured", "| table |", plots))
    assert rewritten(file, "x") == "\nmeasured\n\n![a title](pictures/bench-x.svg)\n\n| table |\n"
    assert "| table |" in capsys.readouterr().out
    shown = words(tmp_path / "pictures" / "bench-x.svg")
    assert all(word in shown for word in ("growth", "servers", "one", "two", "theirs", "cost", "others"))


def test_nobody_needs_matplotlib_to_see_tables() -> None:
    program = (
        "import argparse, sys; sys.modules['matplotlib'] = None; import benches, rstore.bench\n"
        "options = argparse.Namespace(markdown=None, part='x')\n"
        "benches.publish(options, benches.Result('', 'measured', 'table', [benches.Bars('', {'a': [1]})]))"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "measured\n\ntable\n"), done.stderr


# -- RStore ---------------------------------------------------------------------------------------------------------


def flows(*rates: float, servers: float = 0.5, client: float = 0.5) -> dict[int, list[rstore.Flow]]:
    return {1 << step: [rstore.Flow(rate, servers, client)] * 3 for step, rate in enumerate(rates)}


def test_where_the_line_bends_is_computed() -> None:
    assert rstore.bend(flows(100, 190, 210, 400)) == 2
    assert rstore.bend(flows(100, 140, 280)) == 1
    assert rstore.bend(flows(100, 200, 400, 790)) is None
    # The median of the rounds decides, each compared with the same round.
    rounds = {1: [rstore.Flow(rate, 0, 0) for rate in (100, 10, 100)], 2: [rstore.Flow(160, 0, 0)] * 3}
    assert rstore.bend(rounds) is None


@pytest.mark.parametrize(
    ("servers", "used", "client", "processors", "whose"),
    [
        (1, 0.5, 0.95, 2, "the client"),
        (2, 1.9, 0.5, 4, "the servers"),
        (4, 1.2, 0.7, 2, "the machine"),
        (1, 0.98, 0.97, 2, "the client, the servers, the machine"),
        (2, 0.4, 0.4, 2, "nobody"),
    ],
)
def test_who_has_no_time_left(servers: int, used: float, client: float, processors: int, whose: str) -> None:
    assert rstore.full(servers, rstore.Flow(1, used, client), processors) == whose


def test_the_tables_have_every_system() -> None:
    alones = {(size, name): [rstore.Alone(7, 2)] * 3 for size in compared.SIZES for name in ("RStore", "Redis")}
    found = {
        (size, name): flows(1000, 1000, 2000, 4000, servers=0.25, client=0.96)
        for size in compared.SHARDED
        for name in ("RStore", "Redis")
    }
    shown = rstore.result(alones, found, "measured", ["a note"], 2)
    assert shown.tables.startswith("a note\n\n")
    assert "| 1,048,576 | 7 | 7 | 2 | 2 |" in shown.tables
    assert "| 4 KiB | Redis | 1,000 | 1,000 | 2,000 | 4,000 | 1 | 0.96 | 0.25 | the client |" in shown.tables
    assert "| 8 B | RStore | 4,000 / 1,042 | 4,000 / 1,042 | 8,000 / 2,083 | 16,000 / 4,167 |" in shown.tables
    assert len(shown.plots) == 1 + len(compared.SHARDED)


def test_what_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "memcached" else f"/usr/bin/{name}")
    there, notes = rstore.installed([compared.Redis(), compared.Memcached()])
    assert [one.name for one in there] == ["Redis"]
    assert len(notes) == 1 and "memcached (apt-get install memcached)" in notes[0]


def test_rstore_reads_from_several_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is checked before it is counted; with Redis and memcached where they are installed."""
    monkeypatch.setattr(compared, "SERVERS", (1, 2))
    monkeypatch.setattr(compared, "SIZES", (8, 65536))
    monkeypatch.setattr(compared, "SHARDED", (8, 65536))
    file = a_page(tmp_path, "rstore")
    options = argparse.Namespace(fabric="iwarp", rounds=1, seconds=0.02, markdown=file, part="rstore")
    before = set(psutil.Process().children())
    rstore.run(options)
    text = rewritten(file, "rstore")
    there, notes = rstore.installed([compared.Redis(), compared.Memcached()])
    assert all(note in text for note in notes)
    for name in ["RStore (iwarp)", *(one.name for one in there)]:
        rows = re.findall(rf"^\| (8 B|64 KiB) \| {re.escape(name)} \| ([\d,.]+) \| ([\d,.]+) \|", text, re.M)
        assert len(rows) == 2 and all(float(rate.replace(",", "")) > 0 for row in rows for rate in row[1:])
        assert name in words(tmp_path / "pictures" / "bench-rstore.svg")
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("right", [10, compared.VALUES])
@pytest.mark.parametrize("answer", [b"-ERR out of memory\r\n", b"$-1\r\n", b"$5\r\nshort\r\n"])
def test_a_wrong_answer_is_no_read(answer: bytes, right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gives the right values at first: not until the end of the check, or until reads are counted."""
    program = (
        "import re, socket, sys\n"
        "gets = 0\n"
        "with socket.create_server(('127.0.0.1', int(sys.argv[1]))) as listener:\n"
        "    sock = listener.accept()[0]\n"
        "    while data := sock.recv(1 << 20):\n"
        "        if b'SET' in data:\n"
        f"            sock.sendall({compared.Redis.stored!r})\n"
        "        for key in re.findall(rb'GET..\\$10..(..)', data, re.S):\n"
        "            gets += 1\n"
        "            value = b'$8\\r\\n' + bytes([int(key) + 1]) * 8 + b'\\r\\n'\n"
        f"            sock.sendall(value if gets <= {right} else {answer!r})\n"
    )
    for name, changed in (("SERVERS", (1,)), ("SIZES", (8,)), ("SHARDED", (8,)), ("_SILENT", 0.5)):
        monkeypatch.setattr(compared, name, changed)
    monkeypatch.setattr(compared.Redis, "program", sys.executable)
    monkeypatch.setattr(compared.Redis, "command", lambda self, port: ["-c", program, str(port)])
    before = set(psutil.Process().children())
    with contextlib.ExitStack() as stack, pytest.raises(OSError):
        system = compared.TextSystem(compared.Redis(), stack)
        assert right == compared.VALUES
        asyncio.run(system.flow(1, 8, 0.05))
    assert set(psutil.Process().children()) <= before


def test_an_interrupted_comparison_leaves_no_server() -> None:
    program = (
        "import argparse; from rstore import bench, compared\n"
        "compared.SERVERS = (1,)\n"
        "bench.run(argparse.Namespace(fabric='iwarp', rounds=1, seconds=60, markdown=None, part='rstore'))"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stderr is not None
        while "warming up" not in process.stderr.readline():
            assert process.poll() is None
        servers = psutil.Process(process.pid).children()
        assert len(servers) >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert not any(server.is_running() for server in servers)


# -- the others -----------------------------------------------------------------------------------------------------


def test_flashnet_shows_every_way_and_size() -> None:
    rounds = [flashnet.Round(latency, 100.0, 20.0) for latency in (1, 5, 900)]
    shown = flashnet.result({(size, way): rounds for size in flashnet.SIZES for way in flashnet.WAYS}, "3 rounds")
    assert shown.tables.count("| 5 | 100 | 20 | 50000 |") == len(flashnet.WAYS) * len(flashnet.SIZES)
    assert [plot.title.partition(",")[0] for plot in shown.plots] == ["4 KiB", "1 MiB"] * 2
    for plot in shown.plots:
        assert isinstance(plot, benches.Bars) and list(plot.bars) == list(flashnet.WAYS)


def test_rsort_draws_growth_with_records_and_with_workers() -> None:
    cases = [rsort.Case(100, 4), rsort.Case(400, 4), rsort.Case(800, 4), rsort.Case(400, 1), rsort.Case(400, 2)]
    steps = [[Step("shuffle", 0.5)]]
    found = {
        case: [rsort.Measured(name, [case.records / case.workers], steps) for name in ("GNU sort", "RSort")]
        for case in cases
    }
    records, workers = rsort._plots(found)
    assert records.lines["RSort"] == [(100, [25]), (400, [100]), (800, [200])]
    assert sorted(workers.lines["GNU sort"]) == [(1, [400]), (2, [200]), (4, [100])]
    assert "| 400 | 2 | 200.00 | 200.00 |" in rsort._growth(found)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "arguments", "row"),
    [
        ("carafe", ["--scales", "6", "7", "--workers", "1", "2"], r"\| 7 \| [\d,]+ \|( [\d.,]+ \([\d.]+\) \|){3}"),
        ("flashnet", ["--seconds", "0.02"], r"\| 1 MiB \| one-sided, folder \(iwarp\) \|( \d+ \|){4}"),
        ("rsort", ["--records", "16000"], r"\| 16,000 \| \d+ \|( [\d.,]+ \|){8}"),
        ("rstore", ["--seconds", "0.02"], r"\| 64 KiB \| RStore \(iwarp\) \|( [\d,.]+ \|){4}"),
    ],
    ids=["carafe", "flashnet", "rsort", "rstore"],
)
def test_tiny_runs_of_all(tmp_path: Path, name: str, arguments: list[str], row: str) -> None:
    file = a_page(tmp_path, name)
    command = [sys.executable, str(ROOT / "examples" / name), "bench", "--rounds", "1", "--markdown", str(file)]
    done = subprocess.run(
        [*command, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(row, rewritten(file, name)), file.read_text()
    assert words(tmp_path / "pictures" / f"bench-{name}.svg")
