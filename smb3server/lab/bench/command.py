"""``smb3server bench``: measure our server against Samba with the same client and the same cases, in turns.

Everything is measured in rounds. In a round every case runs on one server and immediately afterwards on the other; the
order changes from round to round. The result is medians with their spread. A verdict is given only if the rounds agree,
and none if other programs kept the machine busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smb3server.lab.bench import interpreter, machine, page
from smb3server.lab.bench.cases import ALL, Case
from smb3server.lab.bench.client import Client, Target, build
from smb3server.lab.bench.errors import interruptible
from smb3server.lab.bench.figures import Sample
from smb3server.lab.bench.servers import ROOT, SAMBA, ours, over_fabrics, samba, samba_version

if TYPE_CHECKING:
    from smb3server.client.address import Address
    from smb3server.client.credentials import Login

_SPARE = 64
"""Mebibytes that a run needs in addition to its large files."""


@dataclass(slots=True)
class Options:
    """What is measured, and how."""

    rounds: int
    seconds: float
    cases: tuple[str, ...]
    no_samba: bool
    fabrics: tuple[str, ...]
    python: str
    pin: bool
    size: int
    folder: Path
    as_json: bool
    markdown: Path | None
    against: tuple[Address, Login] | None = None
    """A server that runs already, and who logs on to it: it is measured instead."""


def run(client: Client, targets: list[Target], cases: list[Case], rounds: int) -> list[page.Row]:
    """Measure all ``cases`` on all ``targets``, round by round: ours, then Samba or ours over fabrics."""
    samples: dict[tuple[str, str], list[Sample]] = {}
    for number in range(rounds):
        for case in cases:
            print(f"bench: round {number + 1} of {rounds}: {case.name}", file=sys.stderr, flush=True)
            for target in targets if number % 2 == 0 else reversed(targets):
                samples.setdefault((target.name, case.name), []).append(client.measure(target, case))
    ours, *others = (target.name for target in targets)
    return [
        page.Row(
            case,
            samples[ours, case.name],
            samples.get((SAMBA, case.name), []),
            {name: samples[name, case.name] for name in others if name != SAMBA},
        )
        for case in cases
    ]


def measure(options: Options) -> tuple[dict[str, str], list[page.Row]]:
    """Do a whole run; return its circumstances and the rows of figures. Raises ``BenchError``."""
    cases = [ALL[name] for name in options.cases]
    version = "" if options.no_samba else samba_version()
    python = interpreter.prepare(options.python, ROOT)
    found = interpreter.identify(python)
    if found.warning:
        print(f"bench: {found.warning}", file=sys.stderr)
    prefix = ("taskset", "-c", "0") if options.pin else ()
    began = machine.Beginning.now()
    with contextlib.ExitStack() as stack:
        files = options.size * (1 if options.no_samba else 2)
        root = stack.enter_context(machine.workplace(options.folder, files + _SPARE))
        program = build(root)
        kind = machine.file_system(root)
        rdma = ",".join(options.fabrics) or "off"
        targets = [stack.enter_context(ours(root / "ours", python, prefix, options.size, rdma))]
        targets += over_fabrics(targets[0], options.fabrics, sys.executable)
        if version:
            targets.append(stack.enter_context(samba(root / "samba", prefix, options.size)))
        roots = [os.getpid(), *(target.process for target in targets)]
        rows = run(Client(program, options.seconds, options.size, prefix, roots), targets, cases, options.rounds)
    samples = [sample for row in rows for sample in row.samples]
    circumstances = machine.describe(
        began,
        f"{options.rounds} rounds of {options.seconds:g} s"
        + (", clients and servers on one core" if options.pin else ""),
        f"data on {kind}, {options.size} MiB",
        {"Ours": f"{found}; {interpreter.modules_in_c(python, ROOT)}", **({"Samba": version} if version else {})},
        samples,
    )
    return circumstances, rows


def bench(options: Options) -> int:
    """Measure and print, and return the exit status. Raises ``BenchError`` and ``OSError``."""
    with interruptible():
        part = page.FABRICS if options.fabrics else page.TABLE
        if options.markdown:
            page.check_page(options.markdown, part)
        if options.against is None:
            circumstances, rows = measure(options)
        else:
            from smb3server.lab.bench import foreign  # Only this needs the client library.

            cases = [ALL[name] for name in options.cases]
            circumstances, rows = foreign.measure(
                *options.against, cases, options.rounds, options.seconds, options.size
            )
        text = page.document(circumstances, rows)
        if options.markdown:
            page.rewrite(options.markdown, text, part)
    print(json.dumps(page.as_json(circumstances, rows), indent=2) if options.as_json else text)
    return 0
