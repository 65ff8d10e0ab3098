"""``python -m tools.wpts [SUITE...]``: run Microsoft's file-server suites against this server.

The suites are no part of this repository: ``--folder`` (or the variable WPTS) names the folder that has them, with
``server.sh`` and ``run.py``. Without it nothing is run. It takes root: the server is in a network namespace.

The exit status is 1 if a case that passed before (tests/conformance/wpts-SUITE-PLATFORM.tsv) no longer passes, or if a
case fails that reasons.toml does not explain. ``--update`` writes these tables and docs/microsoft-suites.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from smb3server.process import output
from tools.wpts import disks, page, table

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tests" / "conformance"
PAGE = ROOT / "docs" / "microsoft-suites.md"
DECISIONS = table.HERE / "decisions.md"
SETTINGS = {
    "smb2": [
        "SupportedCompressionAlgorithms=LZNT1;LZ77;LZ77Huffman;Pattern_V1",
        "IsChainedCompressionSupported=true",
        "CompressedFileShare=Compressed",
        "UnsupportedIoCtlCodes=FSCTL_GET_INTEGRITY_INFORMATION;FSCTL_SET_INTEGRITY_INFORMATION",
        "IsOffLoadImplemented=true",
    ],
    "fsa": ["WhichFileSystemSupport_Offload=NTFS"],
    **{suite: [r"ShareContainingSharedVHD=\\10.88.1.2\SharedDisks"] for suite in ("rsvd", "sqos")},
    "dfsc": ["StorageServerName=10.88.1.2", "SMBDfsLink=Further\\SMBDfsLink"],
}
"""Properties that a suite has besides those of the runner's own configuration."""
_SLOW = "Name!~Scavenger"
"""Leaves out two cases that wait for ten minutes."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.wpts", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(table.SUITES)}; default: all")
    parser.add_argument("--folder", type=Path, default=os.environ.get("WPTS") or None, help="default: $WPTS")
    parser.add_argument(
        "--platform", choices=table.PLATFORMS, action="append", help="default: both, one after the other"
    )
    parser.add_argument("--filter", metavar="EXPRESSION", help="such as Name~Lease: these cases alone")
    parser.add_argument("--all", action="store_true", help="with the cases that wait for ten minutes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "wpts", help="results; default: build/wpts")
    parser.add_argument("--update", action="store_true", help="make these results the expected ones")
    return parser.parse_args()


@contextlib.contextmanager
def _server(folder: Path, suite: str, log: Path) -> Iterator[None]:
    """Run the server as the suites want it, with its shares, users and reparse points, and what one suite asks for."""
    with tempfile.TemporaryDirectory(prefix="wpts-") as name:
        place = Path(name)
        place.chmod(0o755)
        pid = place / "pid"
        try:
            with open(log, "w", encoding="utf-8") as file:
                subprocess.run(
                    ["bash", folder / "server.sh", place, sys.prefix],
                    stdout=file,
                    stderr=file,
                    check=True,
                    timeout=120,
                )
                _add_sections(place, suite, file)
            yield
        finally:
            if pid.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid.read_text()), signal.SIGTERM)


def _add_sections(place: Path, suite: str, log: IO[str]) -> None:
    """Add what one suite asks for, SUITE.toml, to the configuration of the running server."""
    more = table.HERE / f"{suite}.toml"
    if suite in ("rsvd", "sqos"):
        disks.make(place / "Disks")
    if more.exists():
        with (place / "sut.toml").open("a", encoding="utf-8") as file:
            file.write(more.read_text(encoding="utf-8").replace("PLACE", str(place)))
        command = [sys.executable, "-m", "smb3server", "reload", "--state", str(place / "state")]
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=60)


def _run(options: argparse.Namespace, suite: str, platform: str) -> list[table.Case]:
    out = options.out / platform
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(options.folder / "run.py"), "--out", str(out), "--set", f"Platform={platform}"]
    if options.filter or not options.all:
        command += ["--filter", options.filter or _SLOW]
    # A program beside the runner answers for one that Windows has.
    environment = os.environ | {"PATH": f"{options.folder}:{os.environ['PATH']}"}
    for setting in SETTINGS.get(suite, ()):
        command += ["--set", setting]
    with _server(options.folder, suite, out / f"{suite}-server.log"):
        subprocess.run([*command, suite], cwd=options.folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return table.parse((out / f"{suite}.tsv").read_text(encoding="utf-8"))


def _samba(folder: Path, suite: str) -> dict[str, str]:
    """Return the outcomes of Samba, where the folder has them."""
    found = sorted((folder / "results").glob(f"{suite}-samba-*.tsv"))
    return {case.name: case.outcome for case in table.parse(found[-1].read_text(encoding="utf-8"))} if found else {}


def _table(suite: str, platform: str) -> Path:
    return TABLES / f"wpts-{suite}-{platform.lower()}.tsv"


def _judge(options: argparse.Namespace, suite: str, platform: str, cases: list[table.Case]) -> bool:
    """Print what the run says. Return whether it is as expected; with ``--update`` write the table."""
    why, path = table.Reasons(suite, platform), _table(suite, platform)
    expected = table.read(path)
    if not options.all:
        expected = {name: outcome for name, outcome in expected.items() if "Scavenger" not in name}
    counts = Counter(case.outcome for case in cases)
    print(
        f"{suite} as {platform}: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}", flush=True
    )
    whole = not options.filter
    wrong = table.judge(cases, {} if options.update else expected, why, whole)
    print(*(f"  {line}" for line in wrong), sep="\n" if wrong else "", end="\n" if wrong else "")
    if options.update and whole:
        kept = table.read(path)
        ran = {case.name for case in cases}
        waiting = [table.Case(name, outcome) for name, outcome in kept.items() if name not in ran and not options.all]
        table.write(path, [*cases, *waiting], _samba(options.folder, suite), why)
    return not wrong


def main() -> int:
    """Run the suites, and return the exit status."""
    options = _arguments()
    unknown = set(options.suites) - set(table.SUITES)
    if unknown:
        print(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(table.SUITES)}", file=sys.stderr)
        return 2
    if options.folder is None or not (options.folder / "run.py").exists():
        print(
            f"skipped: Microsoft's suites are not here ({options.folder or 'WPTS is not set'}); remedy: WPTS=FOLDER, "
            "a folder with server.sh, run.py and the suites built for Linux"
        )
        return 0
    options.folder, options.out = options.folder.resolve(), options.out.resolve()
    if os.geteuid():
        print("this takes root: the server is in a network namespace", file=sys.stderr)
        return 2
    right = True
    for suite in options.suites or table.SUITES:
        for platform in options.platform or table.PLATFORMS:
            print(f"{suite} as {platform}: a few minutes ...", flush=True)
            right &= _judge(options, suite, platform, _run(options, suite, platform))
    if options.update:
        pairs = [(suite, platform) for suite in table.SUITES for platform in table.PLATFORMS]
        tables = {pair: page.rows_of(_table(*pair)) for pair in pairs if _table(*pair).exists()}
        PAGE.write_text(page.markdown(tables, DECISIONS.read_text(encoding="utf-8")), encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(output.run(main))
