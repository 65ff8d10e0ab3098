"""A run of the conformance cases against one server or several, and its reports."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from smb3server.config.error import ConfigError
from smb3server.config.sources.passwords import find_password
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.page import check_page, rewrite
from smb3server.lab.conformance import own, report
from smb3server.lab.conformance.registry import Case
from smb3server.lab.conformance.runner import AT_ONCE, run
from smb3server.lab.conformance.target import FABRICS, Target, Timing
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import Finding, Result, Verdict
from smbdirect.core.constants import DEFAULT_PORT
from smbdirect.errors import ProviderError
from smbdirect.providers.make import make_provider

EXIT_CONFORMS, EXIT_BROKEN = 0, 1
FAILURES = (BenchError, ConfigError, ProviderError, OSError, Finding)
"""Why there can be nothing to test."""
SMB_PORT = 445
MARKS = "conformance"
"""What the marks in a page of Markdown say, between which the table stands."""


@dataclass(slots=True)
class Options:
    """What is tested, and what is written. Raises ``ValueError`` for options that do not go together."""

    target: str | None
    fabric: tuple[str, ...]
    port: int | None
    tcp_port: int
    keepalive: float | None
    settle: float
    user: str | None
    password_file: Path | None
    share: str | None
    cases: tuple[str, ...]
    at_once: int | None
    evidence: bool
    json: Path | None
    junit: Path | None
    html: Path | None
    markdown: Path | None

    def __post_init__(self) -> None:
        for fabric in self.fabric:
            if fabric not in FABRICS:
                raise ValueError(f"--fabric {fabric}: one of {', '.join(FABRICS)}")
        if self.target is None:
            for name in ("port", "user", "share"):
                if getattr(self, name) is not None:
                    raise ValueError(f"--{name} is for a --target")
            self.fabric = self.fabric or own.FABRICS
        elif len(self.fabric) != 1 or self.fabric == ("loopback",):
            raise ValueError("--target needs one --fabric: iwarp, roce or verbs")
        if (self.user is None) != (self.share is None):
            raise ValueError("--user and --share go together")


def list_of(cases: Sequence[Case]) -> str:
    """Return the cases with their rules, as text."""
    return "\n".join(f"{entry.name}  [{entry.section}]\n    {entry.rule}" for entry in cases)


def foreign_target(options: Options, host: str) -> Target:
    """Return the server that the command line names. Raises ``ProviderError`` and ``ConfigError``."""
    fabric = options.fabric[0]
    timing = Timing(settle=options.settle)
    if options.keepalive is not None:
        timing = replace(timing, keepalive=options.keepalive)
    return Target(
        fabric=fabric,
        provider=make_provider(fabric),
        host=host,
        port=options.port or (DEFAULT_PORT if fabric == "iwarp" else SMB_PORT),
        tcp_port=options.tcp_port,
        user=options.user or "",
        password=find_password(options.user, options.password_file) if options.user else "",
        share=options.share or "",
        timing=timing,
        name=f"{host} over {fabric}",
    )


class Progress:
    """A line on stderr that counts the results."""

    def __init__(self, target: str, total: int) -> None:
        self._target = target
        self._total = total
        self._done = 0
        self._failed = 0
        self._live = sys.stderr.isatty()

    def __call__(self, result: Result) -> None:
        """Count one result. Show it if it is no pass."""
        self._done += 1
        self._failed += result.verdict is Verdict.FAIL
        if self._live:
            line = f"{self._target}: {self._done} of {self._total}, {self._failed} failed: {result.name}"
            print(f"\r\x1b[K{line[:118]}", end="", file=sys.stderr, flush=True)
            if self._done == self._total:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)


async def _run_one(making: AbstractAsyncContextManager[Target], cases: Sequence[Case], at_once: int) -> report.Run:
    began, start = datetime.datetime.now().astimezone().isoformat(" ", "minutes"), time.monotonic()
    async with making as target:
        await _reach(target)
        results = await run(target, cases, Progress(target.name, len(cases)), at_once)
    return report.Run(target.name, target.fabric, began, time.monotonic() - start, results)


async def _reach(target: Target) -> None:
    """Raise ``Finding`` if no connection to the target is possible: nothing can be said about its rules then. Warn if
    the account does not work."""
    trial = Trial(target)
    try:
        await trial.connect()
        if target.share:
            try:
                await trial.log_on()
            except Finding as finding:
                print(f"smb3server conformance: {finding}; cases that need a session go wrong", file=sys.stderr)
    finally:
        await trial.finish()


async def _run(options: Options, cases: Sequence[Case]) -> list[report.Run]:
    if options.target is not None:
        return [await _run_one(nullcontext(foreign_target(options, options.target)), cases, options.at_once or AT_ONCE)]
    return [await _run_one(own.own_server(fabric), cases, options.at_once or AT_ONCE) for fabric in options.fabric]


def _write(options: Options, runs: Sequence[report.Run]) -> None:
    """Write the files that were asked for, and the table unless JSON takes the output."""
    document = json.dumps(report.as_json(runs), indent=2) + "\n"
    if options.json == Path("-"):
        print(document, end="")
    else:
        print(report.text(runs, options.evidence))
        if options.json is not None:
            options.json.write_text(document, encoding="utf-8")
    for path, make in ((options.junit, report.junit), (options.html, report.page)):
        if path is not None:
            path.write_text(make(runs), encoding="utf-8")
    if options.markdown is not None:
        rewrite(options.markdown, report.markdown(runs), MARKS)


def run_cases(options: Options, cases: Sequence[Case]) -> int:
    """Run the cases, write the reports, and return the exit status. Raises ``FAILURES`` if nothing can be tested."""
    # The server of ours logs each connection that the cases have it terminate.
    logging.basicConfig(level=logging.CRITICAL)
    if options.markdown is not None:
        check_page(options.markdown, MARKS)
    runs = asyncio.run(_run(options, cases))
    _write(options, runs)
    return EXIT_CONFORMS if report.passed(runs) else EXIT_BROKEN
