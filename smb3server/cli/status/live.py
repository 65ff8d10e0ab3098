"""``smb3server status --watch``: a live screen in a terminal, a line per interval elsewhere."""

from __future__ import annotations

import contextlib
import selectors
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from smb3server.cli.status.tables import render, throughput
from smb3server.process.log_lines import printable
from smb3server.status.model import Report

_GLANCE = 0.2
"""Seconds after which a new size of the terminal is noticed."""
_QUIT = "qQ\x03\x04"


def line(report: Report) -> str:
    """Return one report as one line, for logs and pipes."""
    server = report.server
    moment = datetime.fromtimestamp(server.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    opens = sum(entry.open_count for entry in report.sessions)
    counts = f"sessions {len(report.sessions)}, channels {len(report.channels)}, opens {opens}"
    return f"{moment} {printable(server.name)}: {throughput(server).removeprefix('now: ')}; {counts}"


def screen(report: Report, width: int, height: int, sections: Sequence[str], footer: str) -> Group:
    """Return the report cut to a screen. Tables say how many rows they leave out."""
    room = max(height - 1, 1)
    lines: list[Text] = []
    for most in range(room, -1, -1):
        lines = render(report, width, sections, most)
        if len(lines) <= room:
            break
    else:
        more = Text("... the screen is too small for the rest: name a section", "yellow")
        lines = [*lines[: room - 1], more][:room]
    lines += [Text()] * (room - len(lines))
    return Group(*lines, Text(footer[:width], "reverse"))


@contextlib.contextmanager
def _keys() -> Iterator[bool]:
    """Deliver single keys from the terminal. Yield whether there is one."""
    if not sys.stdin.isatty():
        yield False
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _quit_within(seconds: float, has_keys: bool) -> bool:
    if not has_keys:
        time.sleep(seconds)
        return False
    # select(2) cannot take descriptors above 1,023.
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        ready = selector.select(seconds)
    return bool(ready) and sys.stdin.read(1) in _QUIT


def watch(read: Callable[[], Report], interval: float, sections: Sequence[str], console: Console) -> None:
    """Show what ``read`` returns every ``interval`` seconds, until q is pressed. Ctrl-C raises ``KeyboardInterrupt``.

    Reading blocks for a moment; what it raises ends the screen."""
    footer = f" q quits, the busiest is first, every {interval:g} s"
    with _keys() as has_keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            report = read()
            deadline = time.monotonic() + interval
            shown = None
            while (left := deadline - time.monotonic()) > 0:
                if shown != console.size:
                    shown = console.size
                    live.update(screen(report, shown.width, shown.height, sections, footer), refresh=True)
                if _quit_within(min(_GLANCE, left), has_keys):
                    return
