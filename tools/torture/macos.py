"""``python -m tools.torture.macos``: run smbtorture's suites about Macs against this server and against Samba.

The suites are those of vfs_fruit. ``macos.toml`` says how they run, and why tests that Samba passes do not pass here.
The exit status is 1 if a test that passed before (tests/conformance/macos-smbtorture.tsv) no longer passes, or if Samba
passes one without such a reason. ``--update`` writes that file and docs/smbtorture-macos.md.

``--newest`` adds the smbtorture and the smbd of Debian's newest Samba, as for ``python -m tools.torture``. ``--fabric
iwarp`` runs over SMB Direct, through the proxy, and compares with the plain run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smb3server.process import output
from tools.torture import samba_root, subunit
from tools.torture.outcome import read_table
from tools.torture.release import DISTRIBUTION, NEWEST, ROOT, Release
from tools.torture.server import PASSWORD, USER, ServerError, configuration, running_server
from tools.torture.volumes import volume

SETUP = Path(__file__).resolve().parent / "macos.toml"
EXPECTED = ROOT / "tests" / "conformance" / "macos-smbtorture.tsv"
PAGE = ROOT / "docs" / "smbtorture-macos.md"
COLUMNS = ("release", "test", "here", "samba")
MODEL = "MacSamba"
"""The test of AAPL counts its letters."""
_SECONDS = 120
Served = tuple[str, int, dict[str, Path]]
"""Host and port of a server, and the folders of its shares."""


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one test."""

    release: str
    test: str
    here: str
    samba: str

    @property
    def is_behind(self) -> bool:
        """Whether Samba passes it and this server does not."""
        return self.samba == "pass" and self.here != "pass"


def setup() -> dict[str, Any]:
    """Return the content of macos.toml."""
    return tomllib.loads(SETUP.read_text(encoding="utf-8"))


def reasons() -> dict[str, str]:
    """Return why tests that Samba passes do not pass here, by test."""
    return {test: " ".join(text.split()) for test, text in setup()["reason"].items()}


def expected() -> list[Row]:
    """Return the rows of the file of expectations."""
    return [Row(*(row[name] for name in COLUMNS)) for row in read_table(EXPECTED)] if EXPECTED.exists() else []


def unexplained(rows: list[Row]) -> list[Row]:
    """Return the rows of tests that only Samba passes, and nobody has said why."""
    known = reasons()
    return [row for row in rows if row.is_behind and row.test not in known]


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as a table."""
    lines = ["\t".join(COLUMNS), *sorted("\t".join((row.release, row.test, row.here, row.samba)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def markdown(rows: list[Row]) -> str:
    """Return the page: what passes, and why the rest does not."""
    lines = [
        "# smbtorture about Macs",
        "",
        "Written by `make torture-macos`, which runs the suites of vfs_fruit (`vfs.fruit*`) of two releases of Samba's",
        "smbtorture against shares with `macos` and `time_machine`, and against Samba of the same release, set up as",
        "its own tests set it up (`tools/torture/macos.toml`). `vfs.unfruit` is about a tool of Samba: left out.",
        "",
        "| smbtorture | tests | pass here | pass on Samba |",
        "|---|---|---|---|",
    ]
    for release in sorted({row.release for row in rows}):
        mine = [row for row in rows if row.release == release]
        here, samba = (sum(getattr(row, name) == "pass" for row in mine) for name in ("here", "samba"))
        lines.append(f"| {release} | {len(mine)} | {here} | {samba} |")
    lines += ["", "Over SMB Direct (`python -m tools.torture.macos --fabric iwarp`) the same tests pass."]
    known, others = reasons(), sorted({row.test for row in rows if row.here != "pass"})
    lines += ["", "## Do not pass here", "", *(f"- {test}: {known.get(test, 'not explained')}" for test in others)]
    lines += ["", "## Pass", "", *(f"- {test}" for test in sorted({row.test for row in rows} - set(others)))]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _folders(place: Path, shares: Mapping[str, Mapping[str, Any]], owner: str | None) -> Iterator[dict[str, Path]]:
    """Make the file systems of the shares; yield their folders by share."""
    with contextlib.ExitStack() as stack:
        names = {share["folder"] for share in shares.values()}
        made = {name: stack.enter_context(volume(place, name, "ext4"))[0] for name in names}
        for path in made.values():
            if owner is not None and os.geteuid() == 0:
                shutil.chown(path, owner)
        yield {name: made[share["folder"]] for name, share in shares.items()}


@contextlib.contextmanager
def served_here(place: Path, what: Mapping[str, Any], fabric: str | None) -> Iterator[Served]:
    """Run this server; yield its address and the folders of its shares."""
    options = {
        name: {key: value for key, value in share.items() if key != "folder"} for name, share in what["share"].items()
    }
    with _folders(place, what["share"], "nobody") as paths:
        config = configuration(paths, options, {})
        config += f'[discovery]\nmdns = false\nws_discovery = false\nmodel = "{MODEL}"\n'
        with running_server(place, config, fabric) as (host, port):
            yield host, port, paths


@contextlib.contextmanager
def served_by_samba(
    place: Path, what: Mapping[str, Any], root: Path | None
) -> Iterator[tuple[str, int, dict[str, Path]]]:
    """Run smbd; yield its address and the folders of its shares."""
    with _folders(place, what["share"], None) as paths:
        for path in paths.values():
            path.chmod(0o777)
        with samba_root.running_samba(root, place, "macos", 20, paths, what["samba"]) as (host, port):
            yield host, port, paths


def results(
    what: Mapping[str, Any], prefix: list[str], host: str, port: int, paths: Mapping[str, Path], raw: Path, samba: bool
) -> dict[str, str]:
    """Run all suites against a server, which may be Samba's. Return the results by test."""
    suites = subprocess.run([*prefix, "smbtorture", "--list-suites"], capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for run in what["run"]:
        if ".".join(run["suite"].split(".")[:2]) not in suites.stdout.split() or (samba and run.get("only_here")):
            continue
        command = [*prefix, "timeout", "-k", "2", str(_SECONDS), "smbtorture", f"//{host}/{run['share']}"]
        command += ["-p", str(port), "-U", f"{USER}%{PASSWORD}", "--fullname", "--format=subunit"]
        given = [text.replace("FOLDER", str(paths[run["share"]])) for text in run["options"]]
        command += [*(f"--option=torture:{text}" for text in given), run["suite"]]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        with (raw / f"{run['suite'].replace('/', '-')}.txt").open("a", encoding="utf-8") as file:
            file.write(f"### {' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        for test, verdict in subunit.parse(done.stdout).items():
            found[test] = verdict.result
    return found


def _run(release: Release, root: Path | None, fabric: str | None, out: Path) -> list[Row]:
    """Run everything with the smbtorture of one release."""
    what, tables = setup(), []
    with contextlib.ExitStack() as stack:
        for kind in ("here", "samba"):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torture-")))
            place.chmod(0o755)
            server = served_here(place, what, fabric) if kind == "here" else served_by_samba(place, what, root)
            raw = out / f"{release.version}-{kind}"
            shutil.rmtree(raw, ignore_errors=True)
            raw.mkdir(parents=True)
            with server as (host, port, paths):
                prefix = [] if root is None else samba_root.prefix(root, place)
                tables.append(results(what, prefix, host, port, paths, raw, kind == "samba"))
    here, samba = tables
    return [Row(release.version, test, here.get(test, "none"), samba.get(test, "none")) for test in here | samba]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torture.macos", description=__doc__)
    parser.add_argument("--newest", action="store_true", help="with Debian's newest Samba, too (takes root)")
    parser.add_argument("--samba-root", type=Path, metavar="DIR", help="its folder; implies --newest")
    parser.add_argument("--fabric", choices=("iwarp", "loopback"), help="over SMB Direct, through a proxy")
    parser.add_argument("--update", action="store_true", help="make these results the expected ones")
    options = parser.parse_args()
    releases: list[tuple[Release, Path | None]] = [(DISTRIBUTION, None)]
    if options.newest or options.samba_root:
        root = options.samba_root or samba_root.DEFAULT
        if (reason := samba_root.why_not(root)) is not None:
            print(reason, file=sys.stderr)
            return 2
        releases.append((NEWEST, root))
    if shutil.which("smbtorture") is None or shutil.which("smbd") is None:
        print("smbtorture and smbd are needed (Debian: samba-testsuite, samba)", file=sys.stderr)
        return 2
    rows: list[Row] = []
    try:
        for release, root in releases:
            rows += _run(release, root, options.fabric, ROOT / "build" / "torture-macos")
    except ServerError as error:
        print(error, file=sys.stderr)
        return 2
    for release, _ in releases:
        mine = [row for row in rows if row.release == release.version]
        print(
            f"smbtorture {release.version}: {sum(row.here == 'pass' for row in mine)} of {len(mine)} pass here, "
            f"{sum(row.samba == 'pass' for row in mine)} on Samba"
        )
    known = reasons()
    for row in rows:
        if row.here != "pass":
            print(f"  {row.release} {row.test}: {row.here} here, {row.samba} on Samba: {known.get(row.test, '')[:90]}")
    before = {(row.release, row.test): row for row in expected()}
    worse = [row for row in rows if row.here != "pass" and _passed(before.get((row.release, row.test)))]
    if options.update:
        kept = [row for key, row in before.items() if key[0] not in {release.version for release, _ in releases}]
        write(EXPECTED, kept + rows)
        PAGE.write_text(markdown(expected()), encoding="utf-8")
        worse = []
    for row in [*worse, *unexplained(rows)]:
        print(f"NOT EXPECTED: {row.release} {row.test}: {row.here}")
    return 1 if worse or unexplained(rows) else 0


def _passed(row: Row | None) -> bool:
    return row is not None and row.here == "pass"


if __name__ == "__main__":
    sys.exit(output.run(main))
