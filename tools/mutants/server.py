"""``python -m tools.mutants.server [NAME...]``: try ``smb3server conformance`` with servers that are broken on purpose.

Each mutant of server.toml gets a copy of the packages with one damage, and the judge runs out of that copy in a process
of its own, over iWARP. All the cases that the mutant names must fail. A mutant that names none runs through all cases,
which must pass: it says why nothing can be seen of it.

The exit status is 1 if a case did not find its mutant or a mutant is found that none should find, and 2 if a mutant
could not be tried: its text is no longer in the code, or the damaged server does not even serve a small file.
``--update`` writes tests/conformance/mutants-server.tsv and the counts in docs/judges.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench.page import rewrite
from smb3server.process import output
from tools.mutants.declared import ROOT, Mutant, MutantError, copy_with, read

TABLE = ROOT / "tests" / "conformance" / "mutants-server.tsv"
PAGE = ROOT / "docs" / "judges.md"
MARKS = "mutants of the server"
HEAD = ("mutant", "verdict", "cases that fail, or why none does")
CONTROL = "BVT_SmbdDataTransfer_Basic_SendSmallBytesOfData"
"""A case that passes against every mutant: a server that cannot do this is no mutant of one rule."""
_LIMIT = 300
"""Seconds of one run. Cases that wait for the server in vain take a minute and a half."""


class Tried(NamedTuple):
    """What became of one mutant."""

    mutant: Mutant
    found_by: tuple[str, ...]
    wrong: str
    """Why this is not as declared; empty if it is."""

    @property
    def row(self) -> tuple[str, str, str]:
        """The row of the table."""
        verdict = "killed" if self.found_by else "survived"
        return (self.mutant.name, verdict, ", ".join(self.found_by) or self.mutant.reason)


def failed_cases(mutant: Mutant) -> set[str]:
    """Run the judge out of a damaged copy and return the cases that failed. Raises ``MutantError``."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_with(mutant, folder)
        chosen = [CONTROL, *mutant.killers] if mutant.killers else []
        command = [sys.executable, "-m", "smb3server", "conformance", "--fabric", "iwarp", "--json", "-"]
        command += [word for case in chosen for word in ("--cases", case)]
        # The twins in C of what is damaged are whole.
        environment = os.environ | {"PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1", "SMB3SERVER_NATIVE": "0"}
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            try:
                told, complaint = process.communicate(timeout=_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise MutantError(f"{mutant.name}: the judge did not end within {_LIMIT} s") from None
    try:
        verdicts = {case["name"]: case["verdict"] for case in json.loads(told)[0]["cases"]}
    except (ValueError, LookupError) as error:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise MutantError(f"{mutant.name}: the judge has ended with {process.returncode}: {last}") from error
    if CONTROL in verdicts and verdicts[CONTROL] != "pass":
        raise MutantError(f"{mutant.name}: {CONTROL} is {verdicts[CONTROL]}: the server is broken altogether")
    return {case for case, verdict in verdicts.items() if verdict == "fail"}


def try_one(mutant: Mutant) -> Tried:
    """Run the judge against one mutant and compare what it finds with the declaration. Raises ``MutantError``."""
    failed = failed_cases(mutant)
    wrong = ""
    if missed := [case for case in mutant.killers if case not in failed]:
        wrong = f"survived: {', '.join(missed)} did not find it"
    elif not mutant.killers and failed:
        wrong = f"killed by {', '.join(sorted(failed))}, and declared as one that survives"
    return Tried(mutant, tuple(sorted(failed)), wrong)


def table(tried: Sequence[Tried]) -> str:
    """Return the table of verdicts."""
    return "".join("\t".join(row) + "\n" for row in [HEAD, *(each.row for each in tried)])


def summary(tried: Sequence[Tried]) -> str:
    """Return what the page says of them: how many are killed, and why the others are not."""
    all_of = Counter(each.mutant.about for each in tried)
    killed = Counter(each.mutant.about for each in tried if each.found_by)
    survivors = [each.mutant for each in tried if not each.found_by]
    lines = [
        f"{len(tried)} mutants: {killed.total()} killed, {len(survivors)} survived.",
        "",
        "| what is damaged | mutants | killed |",
        "| --- | --- | --- |",
        *(f"| {about} | {count} | {killed[about]} |" for about, count in all_of.items()),
        "",
        "| survivor | damage | why no case finds it |",
        "| --- | --- | --- |",
        *(f"| `{mutant.name}` | {mutant.breaks} | {mutant.reason} |" for mutant in survivors),
    ]
    return "\n".join(lines)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.server", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of mutants, with * and ?; default: all")
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    parser.add_argument("--update", action="store_true", help="write the table of verdicts and their counts")
    options = parser.parse_args(words)
    if options.update and options.names:
        parser.error("--update is for all mutants")
    return options


def _chosen(names: list[str]) -> list[Mutant]:
    """Return the mutants that match. Raises ``MutantError`` for a pattern that matches none."""
    mutants = read()
    for name in names:
        if not any(fnmatch.fnmatchcase(mutant.name, name) for mutant in mutants):
            raise MutantError(f"no mutant matches {name!r}; --list shows all")
    return [one for one in mutants if not names or any(fnmatch.fnmatchcase(one.name, name) for name in names)]


def main(words: Sequence[str] | None = None) -> int:
    """Try the mutants and return the exit status."""
    options = _arguments(words)
    tried: list[Tried] = []
    errors = 0
    try:
        chosen = _chosen(options.names)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    for mutant in chosen:
        if options.list:
            print(f"{mutant.name}  {mutant.file}\n    {mutant.breaks}")
            continue
        try:
            one = try_one(mutant)
        except MutantError as error:
            errors += 1
            print(f"ERROR     {error}", flush=True)
            continue
        tried.append(one)
        name, verdict, what = one.row
        print(f"{'WRONG' if one.wrong else verdict:9} {name}: {one.wrong or what}", flush=True)
    wrong = sum(bool(one.wrong) for one in tried)
    if options.list:
        return 0
    killed = sum(bool(one.found_by) for one in tried)
    print(f"{len(tried)} mutants tried: {killed} killed, {len(tried) - killed} survived, {wrong} not as declared")
    if errors:
        print(f"{errors} could not be tried", file=sys.stderr)
        return 2
    if options.update and not wrong:
        TABLE.write_text(table(tried), encoding="utf-8")
        rewrite(PAGE, summary(tried), MARKS)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
