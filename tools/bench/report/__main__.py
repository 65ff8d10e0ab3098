"""``python -m tools.bench.report``: measure Samba, impacket's server and ours in turns, and write a report with plots.

Ours is measured over TCP, and over SMB Direct on iWARP, RoCEv2 and loopback. Over TCP the load is made by a C program,
over SMB Direct by this project's own client; its processor time is never counted as the server's. Everything is
measured in rounds, as ``smb3server bench`` does it, whose table is part of the report.

A run takes less than a quarter of an hour. Its results are saved after each round: one that was interrupted has the
rounds before, and ``--from`` makes page and plots of saved results.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from smb3server.lab.bench import interpreter, machine, page
from smb3server.lab.bench.errors import BenchError, interruptible
from smb3server.lab.bench.figures import ROUNDS_FOR_VERDICT
from smb3server.lab.bench.servers import ROOT, samba_version
from smb3server.process import output
from tools.bench.report import plots, run, text
from tools.bench.report.plan import IMPACKET, SAMBA, SIZES, TCP, Section, sections
from tools.bench.report.store import Results, read, save

_SPARE = 64
"""Mebibytes that a run needs in addition to its large files."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of 0.2 s: shows what works, compares nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS_FOR_VERDICT, help="of the table; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement; default: %(default)s")
    parser.add_argument("--cases", nargs="+", metavar="TEXT", help="sections or cases whose name contains one of these")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="SERVER", help="leave out Samba, impacket, iWARP ..."
    )
    parser.add_argument(
        "--lab", action="store_true", help="also boot the kernel lab, for ksmbd and Linux's client: ten minutes more"
    )
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter that runs our server")
    parser.add_argument(
        "--size", type=int, default=256, metavar="MIB", help="size of the file that is read and written"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="folder for the data; default: %(default)s"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "build" / "bench" / "results.json",
        help="where results are saved; default: %(default)s",
    )
    parser.add_argument("--from", dest="saved", type=Path, metavar="FILE", help="measure nothing: use saved results")
    parser.add_argument("--page", type=Path, help="write table, plots and the rest between the markers of this page")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 0.2
    if options.rounds < 1 or options.seconds <= 0 or options.size < SIZES[-1] >> 20:
        parser.error(f"--rounds and --seconds must be positive, --size {SIZES[-1] >> 20} at least: the longest block")
    return options


def chosen(options: argparse.Namespace) -> list[Section]:
    """Return the sections with the points that the options select. Raises ``BenchError`` if there are none."""
    wanted: list[str] = options.cases or [""]
    without = {name.casefold() for name in options.without}
    found = []
    for section in sections().values():
        points = tuple(
            point
            for point in section.points
            if point.target.casefold() not in without
            and any(word in name for word in wanted for name in (section.name, point.case.name))
        )
        if points:
            found.append(section._replace(points=points))
    if not found:
        raise BenchError("no case has such a name")
    return found


def measure(options: argparse.Namespace, results: Results) -> None:
    """Do a whole run into ``results``. Raises ``BenchError``, and ``SystemExit`` when it is interrupted."""
    plan = chosen(options)
    wanted = {point.target for section in plan for point in section.points} | {TCP}
    versions = {"Samba": samba_version()} if SAMBA in wanted else {}
    python = interpreter.prepare(options.python, ROOT)
    found = interpreter.identify(python)
    if found.warning:
        print(f"bench: {found.warning}", file=sys.stderr)
    began = machine.Beginning.now()
    with contextlib.ExitStack() as stack:
        files = options.size * (1 + (SAMBA in wanted) + (IMPACKET in wanted))
        root = stack.enter_context(machine.workplace(options.folder, files + _SPARE))
        data = f"data on {machine.file_system(root)}, {options.size} MiB"
        targets = stack.enter_context(run.targets(root, python, (), options.size, wanted))
        client = run.make_client(root, options.size, (), targets)
        try:
            run.measure(client, targets, plan, options.rounds, options.seconds, results, options.results)
            if not options.cases or any(word in "idle" for word in options.cases):
                run.measure_idle(client, targets, results)
            if options.lab:
                results.lab = run.measure_lab(options.results.with_name("lab.json"), results)
        finally:
            samples = [sample for found in results.samples.values() for sample in found]
            extent = f"{options.rounds} rounds of {options.seconds:g} s"
            ours = f"{found}; {interpreter.modules_in_c(python, ROOT)}"
            results.circumstances = machine.describe(began, extent, data, {"Ours": ours, **versions}, samples)
            save(results, options.results)


def write(results: Results, path: Path | None) -> None:
    """Write page and plots; without a page, print the text. Raises ``BenchError``."""
    table = page.document(results.circumstances, text.rows(results))
    if path is None:
        print(f"{table}\n\n{text.document(results, [])}")
        return
    page.check_page(path, page.REPORT)
    folder = path.parent / "pictures"
    drawn = [(f"{folder.name}/{name}", plots.PICTURES[name][0]) for name in plots.draw(results, folder)]
    page.rewrite(path, table)
    page.rewrite(path, text.document(results, drawn), page.REPORT)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    options = parse(arguments)
    status: int | str | None = 0
    with interruptible():
        try:
            if options.page:
                page.check_page(options.page)
                page.check_page(options.page, page.REPORT)
            results = read(options.saved) if options.saved else Results()
            if not options.saved:
                try:
                    measure(options, results)
                except SystemExit as interrupted:
                    status = interrupted.code
                print(f"bench: results are in {os.path.relpath(options.results)}", file=sys.stderr)
            write(results, options.page)
        except (BenchError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
    return int(status or 0)


if __name__ == "__main__":
    sys.exit(output.run(main))
