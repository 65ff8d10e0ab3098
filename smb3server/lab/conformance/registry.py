"""The cases. A case is a coroutine function with a name, the section of its rule, and a docstring that states it."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from smb3server.lab.conformance.target import FABRICS
from smb3server.lab.conformance.trial import Trial

Run = Callable[[Trial], Awaitable[None]]
"""Returns if the server kept the rule; raises a ``Finding`` otherwise."""


@dataclass(frozen=True, slots=True)
class Case:
    """One rule."""

    name: str
    """Microsoft's name of the case, if its suite has it."""
    suite: str
    section: str
    rule: str
    run: Run
    fabrics: tuple[str, ...]
    waits: bool
    """Whether it waits for timers of the server. Such cases start first."""
    last: bool
    """Whether it judges what all other cases of the run received. Such cases run at the end."""


CASES: dict[str, Case] = {}
SUITES = ("SmbdNegotiate", "SmbdCreditManagement", "SmbdDataTransfer", "SmbdFurtherRules")
"""The suites that come first in lists and reports, from the beginning of a connection on. Others follow."""


def case(
    suite: str,
    name: str,
    section: str,
    *,
    fabrics: Sequence[str] = FABRICS,
    waits: bool = False,
    last: bool = False,
    rule: str = "",
) -> Callable[[Run], Run]:
    """Enter a function into ``CASES``. ``section`` names the document, too. ``rule`` is its docstring by default."""

    def enter(run: Run) -> Run:
        text = rule or inspect.cleandoc(run.__doc__ or "")
        if name in CASES or not text:
            raise ValueError(f"{name}: a case has a name of its own and says its rule")
        CASES[name] = Case(name, suite, section, " ".join(text.split()), run, tuple(fabrics), waits, last)
        return run

    return enter


def load() -> dict[str, Case]:
    """Import every module of cases and return all of them, suite by suite."""
    package = importlib.import_module("smb3server.lab.conformance.cases")
    for module in sorted(entry.name for entry in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    suites = list(dict.fromkeys([*SUITES, *(entry.suite for entry in CASES.values())]))
    return {entry.name: entry for entry in sorted(CASES.values(), key=lambda entry: suites.index(entry.suite))}


def select(patterns: Sequence[str]) -> list[Case]:
    """Return the cases whose name or suite matches one of ``patterns``; all if there are none. Raises ``ValueError``
    for a pattern that matches nothing."""
    cases = list(load().values())
    chosen: list[Case] = []
    for pattern in patterns:
        found = [c for c in cases if fnmatch.fnmatchcase(c.name, pattern) or fnmatch.fnmatchcase(c.suite, pattern)]
        if not found:
            raise ValueError(f"no case matches {pattern!r}; --list shows all")
        chosen += [c for c in found if c not in chosen]
    return chosen if patterns else cases
