"""``smb3server conformance``: test an SMB Direct server rule by rule.

Without --target it starts a server of ours in this process, with short timers, and tests that. Against another server
its timers are waited for: a run takes about as long as its keepalive interval and a half.

The cases send what no client sends. A server that does not check it may stop or damage memory: do not test one that
others use. With --user and --share, files whose names begin with "conformance-" are made in the share and deleted.

Exit status: 0 if no rule was found broken, 1 if one was or could not be judged, 2 if there was nothing to test.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from smb3server.config.error import ConfigError
from smb3server.config.passwords import find_password
from smb3server.tools.bench.errors import BenchError
from smb3server.tools.bench.page import check_page, rewrite
from smb3server.tools.conformance import own, report
from smb3server.tools.conformance.registry import Case, select
from smb3server.tools.conformance.runner import AT_ONCE, run
from smb3server.tools.conformance.target import FABRICS, Target, Timing
from smb3server.tools.conformance.trial import Trial
from smb3server.tools.conformance.verdict import Finding, Result, Verdict
from smbdirect.core.constants import DEFAULT_PORT
from smbdirect.errors import ProviderError
from smbdirect.providers.make import make_provider

EXIT_CONFORMS, EXIT_BROKEN, EXIT_NOTHING = 0, 1, 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
SMB_PORT = 445
MARKS = "conformance"
"""What the marks in a page of Markdown say, between which the table stands."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smb3server conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("the server")
    where.add_argument("--target", metavar="HOST", help="a server; without it one of ours is started")
    where.add_argument(
        "--fabric",
        nargs="+",
        choices=FABRICS,
        metavar="FABRIC",
        help=f"{', '.join(FABRICS)}; one with --target, else any (default: {' '.join(own.FABRICS)})",
    )
    where.add_argument("--port", type=int, help=f"default: {DEFAULT_PORT} over iwarp, {SMB_PORT} over roce and verbs")
    where.add_argument("--tcp-port", type=int, default=SMB_PORT, help="of the same server; default: %(default)s")
    where.add_argument(
        "--keepalive", type=float, metavar="SECONDS", help="the server's KeepaliveInterval; default: 120"
    )
    where.add_argument(
        "--settle",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait after connecting: Linux's siw can lose a message that comes at once",
    )
    who = parser.add_argument_group("the account; without it, cases that need a session do not apply")
    who.add_argument("--user", metavar="USER")
    who.add_argument(
        "--password-file", type=Path, metavar="FILE", help="its first line; else the password is asked for"
    )
    who.add_argument("--share", metavar="SHARE", help="a share that the user may write to")
    what = parser.add_argument_group("the cases and the report")
    what.add_argument("--cases", nargs="+", default=[], metavar="GLOB", help="names of cases or suites; default: all")
    what.add_argument(
        "--at-once",
        type=int,
        default=AT_ONCE,
        metavar="N",
        help="cases that run side by side; default: %(default)s",
    )
    what.add_argument("--list", action="store_true", help="list the cases and stop")
    what.add_argument("--evidence", action="store_true", help="show the evidence of every case")
    what.add_argument("--json", type=Path, metavar="FILE", help="write everything, for programs; - is the output")
    what.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    what.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    what.add_argument(
        "--markdown", type=Path, metavar="PAGE", help=f"write the table between the marks of {MARKS!r} in this page"
    )
    return parser


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[Case]]:
    """Parse the command line and choose the cases."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.target is None:
        given = [
            name
            for name, value in (("--port", options.port), ("--user", options.user), ("--share", options.share))
            if value is not None
        ]
        if given:
            parser.error(f"{given[0]} is for a --target")
        options.fabric = options.fabric or list(own.FABRICS)
    elif not options.fabric or len(options.fabric) != 1 or options.fabric == ["loopback"]:
        parser.error("--target needs one --fabric: iwarp, roce or verbs")
    if (options.user is None) != (options.share is None):
        parser.error("--user and --share go together")
    try:
        return options, select(options.cases)
    except ValueError as error:
        parser.error(str(error))


def foreign_target(options: argparse.Namespace) -> Target:
    """Return the server that the command line names. Raises ``ProviderError`` and ``ConfigError``."""
    fabric = options.fabric[0]
    timing = Timing(settle=options.settle)
    if options.keepalive is not None:
        timing = replace(timing, keepalive=options.keepalive)
    return Target(
        fabric=fabric,
        provider=make_provider(fabric),
        host=options.target,
        port=options.port or (DEFAULT_PORT if fabric == "iwarp" else SMB_PORT),
        tcp_port=options.tcp_port,
        user=options.user or "",
        password=find_password(options.user, options.password_file) if options.user else "",
        share=options.share or "",
        timing=timing,
        name=f"{options.target} over {fabric}",
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


async def _run(options: argparse.Namespace, cases: Sequence[Case]) -> list[report.Run]:
    if options.target is not None:
        return [await _run_one(nullcontext(foreign_target(options)), cases, options.at_once)]
    return [await _run_one(own.own_server(fabric), cases, options.at_once) for fabric in options.fabric]


def _write(options: argparse.Namespace, runs: Sequence[report.Run]) -> None:
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


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    options, cases = parse(arguments)
    if options.list:
        for entry in cases:
            print(f"{entry.name}  [{entry.section}]\n    {entry.rule}")
        return EXIT_CONFORMS
    # The server of ours logs each connection that the cases have it terminate.
    logging.basicConfig(level=logging.CRITICAL)
    try:
        if options.markdown is not None:
            check_page(options.markdown, MARKS)
        runs = asyncio.run(_run(options, cases))
        _write(options, runs)
    except (BenchError, ConfigError, ProviderError, OSError, Finding) as error:
        print(f"smb3server conformance: {error}", file=sys.stderr)
        return EXIT_NOTHING
    except KeyboardInterrupt:
        print("smb3server conformance: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_CONFORMS if report.passed(runs) else EXIT_BROKEN
