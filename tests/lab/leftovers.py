"""What the tests of a module leave behind in their process: descriptors, levels of loggers, and objects for the garbage
collector."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections import Counter

OURS = ("smbdirect", "smb3server", "witness")
_exempt = gc.freeze
MOST_LEFT = 50
"""Descriptors that a process may have more than at its first test: caches of libraries, servers of a wider scope."""


def descriptors() -> list[str]:
    """Return what the descriptors of this process refer to."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def levels() -> dict[str, int]:
    """Return the levels of the root's logger, whose name is empty, and of the project's."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in OURS]
    return {name: logging.getLogger(name).level for name in ("", *names)}


class Leftovers:
    """Watches one test process. Between two modules it collects what the tests of the first left, and exempts what
    remains from collection, so that no test pays for others' objects. Nobody else does: what a server's start exempts
    would be left out, and to examine all that is exempted takes half a second in a process that has all tests. Loggers
    get the levels that they had at first: a server that starts sets its own, and pytest keeps every record with what it
    names for as long as a test runs."""

    def __init__(self) -> None:
        self._before = len(descriptors())
        self._levels = levels()
        gc.freeze = gc.unfreeze = lambda: None

    def restore_levels(self) -> None:
        """Give loggers the levels that they had at first."""
        for name, level in levels().items():
            if level != (first := self._levels.get(name, logging.NOTSET)):
                logging.getLogger(name).setLevel(first)

    def collect(self) -> None:
        """Collect garbage, and exempt what remains."""
        gc.collect()
        _exempt()

    def complaint(self) -> str | None:
        """Return what is wrong with the descriptors of this process, or None. What was complained of once is taken as
        there from then on: modules that follow leave nothing more."""
        left, before = descriptors(), self._before
        if len(left) <= before + MOST_LEFT:
            return None
        self._before = len(left)
        kinds = Counter(target.split(":")[0] for target in left)
        return f"this process has {len(left)} descriptors, {before} at its first test: {dict(kinds)}"
