"""Mutants of the server as ``server.toml`` declares them, and their way into a copy of its packages."""

from __future__ import annotations

import importlib.util
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smb3server.lab.conformance.registry import select

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("smb3server", "smbdirect", "witness")
DECLARED = Path(__file__).with_name("server.toml")


class MutantError(Exception):
    """A declaration cannot be used, or a run of the judge says nothing. Nothing is known of the mutant then."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A server with one damage."""

    about: str
    """What is damaged: mutants are counted by it."""
    name: str
    file: str
    text: str
    """What stands exactly once in the file."""
    replacement: str
    breaks: str
    """The rule that the damage breaks, with its section."""
    cases: Sequence[str] = ()
    """Patterns of the cases that all must find it."""
    reason: str = ""
    """Why no case can find it."""

    @property
    def killers(self) -> list[str]:
        """The names of the cases that must find it."""
        return [case.name for case in select(self.cases)] if self.cases else []


def read(path: Path = DECLARED) -> list[Mutant]:
    """Return the declared mutants. Raises ``MutantError`` for a declaration that says nothing that can be tried."""
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8"))
        mutants = [Mutant(about, **row) for about, rows in groups.items() for row in rows]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise MutantError(f"{path.name}: {error}") from error
    names = [mutant.name for mutant in mutants]
    for mutant in mutants:
        if names.count(mutant.name) > 1:
            raise MutantError(f"{mutant.name} is declared twice")
        if bool(mutant.cases) == bool(mutant.reason):
            raise MutantError(f"{mutant.name} has either cases that find it or a reason why none does")
        try:
            _ = mutant.killers
        except ValueError as error:
            raise MutantError(f"{mutant.name}: {error}") from error
    return mutants


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """Return the text of the mutant's file. Raises ``MutantError`` if the code has moved, or it is no Python."""
    text = (root / mutant.file).read_text(encoding="utf-8")
    count = text.count(mutant.text)
    if count != 1:
        raise MutantError(f"{mutant.name}: its text stands {count} times in {mutant.file}, not once")
    changed = text.replace(mutant.text, mutant.replacement)
    if changed == text:
        raise MutantError(f"{mutant.name} changes nothing")
    try:
        compile(changed, mutant.file, "exec")
    except SyntaxError as error:
        raise MutantError(f"{mutant.name} does not compile: {error}") from error
    return changed


def copy_with(mutant: Mutant, folder: Path, root: Path = ROOT) -> None:
    """Copy the packages to ``folder`` and damage the copy. Raises ``MutantError`` as ``mutated`` does."""
    changed = mutated(mutant, root)
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package)
    file = folder / mutant.file
    file.write_text(changed, encoding="utf-8")
    # Of a file that was changed within the second and has its length, Python would take the old code.
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
