"""The progress of copies: bars on a terminal, lines elsewhere, JSON for programs."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from smb3server.cli.client.options import shown
from smb3server.client.mirror import Event
from smb3server.client.options import Progress as OnProgress
from smb3server.process.words import amount

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

WORTH_A_RATE = 1 << 20
"""Bytes of a file from which its rate says something."""
_WORDS = {"folder": "folder", "remove": "removed", "skip": "skipped", "stay": "stays", "error": "error"}


def _make_bars() -> Progress:
    # Scripts and jobs, which start many commands, do not pay for the import.
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class Reporter:
    """Tells of copies; an ``Observer``."""

    def __init__(self, *, quiet: bool, as_json: bool, dry_run: bool, verbose: bool) -> None:
        self._quiet, self._json, self._dry_run, self._verbose = quiet, as_json, dry_run, verbose
        shows_bars = sys.stderr.isatty() and not quiet and not as_json and not dry_run
        self._bars = _make_bars() if shows_bars else None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Reporter:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, path: str, size: int) -> OnProgress:
        """Show a bar for a file."""
        bars = self._bars
        if bars is None:
            return lambda done, size: None
        # Markup of rich in a name must not take effect.
        name = shown(path.rpartition("/")[2]).replace("[", "\\[")
        task = self._tasks[path] = bars.add_task(name[-40:], total=size)
        return lambda done, size: bars.update(task, completed=done, total=size)

    def event(self, event: Event) -> None:
        """Print what was done."""
        task = self._tasks.pop(event.path, None)
        if task is not None and self._bars is not None:
            self._bars.remove_task(task)
        if self._json:
            self._print_json(event)
        elif event.action == "error":
            # Most errors name the file themselves.
            where = "" if event.path.rpartition("/")[2] in event.text else f"{event.path}: "
            self._print(f"error: {shown(where + event.text)}", sys.stderr)
        elif not self._quiet and (event.action != "same" or self._verbose):
            self._print(self._text(event), sys.stdout)

    def _text(self, event: Event) -> str:
        would = "would " if self._dry_run else ""
        path = shown(event.path)
        if event.action == "copy":
            moved = event.transfer
            rate = f", {amount(moved.rate)}/s" if moved is not None and moved.size > WORTH_A_RATE else ""
            how = ", by the server" if moved is not None and moved.by_server else ""
            resumed = f", from {amount(moved.resumed_at)} on" if moved is not None and moved.resumed_at else ""
            return f"{would}{'copy' if would else 'copied'} {path}  {amount(event.size)}{rate}{resumed}{how}"
        if event.action == "same":
            return f"same {path}"
        word = "remove" if would and event.action == "remove" else _WORDS[event.action]
        return (
            f"{would if event.action == 'remove' else ''}{word} {path}{f': {shown(event.text)}' if event.text else ''}"
        )

    def _print(self, text: str, stream: TextIO) -> None:
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=stream, flush=True)

    def _print_json(self, event: Event) -> None:
        import json

        found: dict[str, object] = {"action": event.action, "path": event.path, "dry_run": self._dry_run}
        if event.action in ("copy", "same"):
            found["size"] = event.size
        if event.transfer is not None:
            found |= {
                "seconds": event.transfer.seconds,
                "resumed_at": event.transfer.resumed_at,
                "by_server": event.transfer.by_server,
            }
        if event.text:
            found["text"] = event.text
        print(json.dumps(found), flush=True)
