"""A shell in a pseudo terminal, and what its screen shows as time passes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import selectors
import signal
import struct
import termios
import time
from typing import NamedTuple

import pyte

FRAME_SECONDS = 0.1
KEY_SECONDS = 0.045
QUIET_SECONDS = 1.2
"""The longest time that a film stands still, whatever the machine needed."""


class Style(NamedTuple):
    colour: str
    bold: bool
    reverse: bool


class Run(NamedTuple):
    """Characters of one style in a row, which begin at ``column``."""

    column: int
    text: str
    style: Style


Row = tuple[Run, ...]
Screen = tuple[Row, ...]


class Frame(NamedTuple):
    at: float
    screen: Screen


class Terminal:
    """Types into a shell, waits for its prompt, and keeps a frame whenever the screen has changed."""

    def __init__(self, command: list[str], columns: int, rows: int, prompt: str) -> None:
        self._prompt = re.compile(prompt)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.frames: list[Frame] = []
        self._began = time.monotonic()
        self._quiet = 0.0
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            os.execvp(command[0], command)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def run(self, command: str, until: str | None = None, seconds: float = 60.0) -> None:
        """Type a command; wait for a line that matches ``until``, or for the next prompt."""
        self.type(command + "\n")
        self.wait(until or self._prompt.pattern, seconds)

    def type(self, text: str) -> None:
        for key in text:
            os.write(self._descriptor, key.encode())
            self._watch(KEY_SECONDS)

    def wait(self, pattern: str, seconds: float = 60.0) -> None:
        """Wait until the line of the cursor, or one above it, matches. Raises ``TimeoutError``."""
        end = time.monotonic() + seconds
        last_only = pattern == self._prompt.pattern
        while not self._matches(pattern, last_only):
            if time.monotonic() > end:
                raise TimeoutError(f"no {pattern!r} on the screen:\n" + "\n".join(self._screen.display))
            self._watch(FRAME_SECONDS)

    def stand(self, seconds: float) -> None:
        """Let the film show what there is."""
        self._watch(seconds)

    def forget(self) -> None:
        """Begin the film here, with an empty screen."""
        os.write(self._descriptor, b"clear\n")
        self._watch(0.5)
        self.frames.clear()
        self._keep()

    def close(self) -> None:
        os.kill(self._pid, signal.SIGHUP)
        os.close(self._descriptor)
        os.waitpid(self._pid, 0)

    def _matches(self, pattern: str, last_only: bool) -> bool:
        lines = self._screen.display
        row = self._screen.cursor.y
        return any(re.search(pattern, line.rstrip()) for line in (lines[row : row + 1] if last_only else lines))

    def _watch(self, seconds: float) -> None:
        """Take what the shell prints for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(self._descriptor, selectors.EVENT_READ)
                ready = selector.select(left)
            if ready:
                self._stream.feed(os.read(self._descriptor, 65536))
        self._keep()

    def _keep(self) -> None:
        screen = tuple(self._row(number) for number in range(self._screen.lines))
        now = time.monotonic() - self._began - self._quiet
        if self.frames and self.frames[-1].screen == screen:
            return
        if self.frames and (more := now - self.frames[-1].at - QUIET_SECONDS) > 0:
            self._quiet += more
            now -= more
        self.frames.append(Frame(now, screen))

    def _row(self, number: int) -> Row:
        """Return the runs of a row without its blanks at the end."""
        cells = self._screen.buffer[number]
        runs: list[Run] = []
        for column in range(self._screen.columns):
            cell = cells[column]
            style = Style(cell.fg, cell.bold, cell.reverse)
            if runs and (runs[-1].style == style or (cell.data == " " and not cell.reverse)):
                runs[-1] = runs[-1]._replace(text=runs[-1].text + cell.data)
            elif cell.data != " " or cell.reverse:
                runs.append(Run(column, cell.data, style))
        return tuple(run._replace(text=run.text if run.style.reverse else run.text.rstrip()) for run in runs)
