"""Mistakes in a configuration, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Place(NamedTuple):
    """Where a setting was given: in a file, or by an option of the command line."""

    file: str = ""
    line: int = 0
    column: int = 0
    option: str = ""


class Problem(NamedTuple):
    """A mistake."""

    text: str
    setting: str = ""
    """The setting, as ``[server] port`` or ``share data: users``."""
    place: Place = Place()

    def __str__(self) -> str:
        place = self.place
        if place.option:
            return f"{place.option}: {self.text}"
        file = f"{place.file}:{place.line}:{place.column}: " if place.file else ""
        return f"{file}{self.setting}{': ' if self.setting else ''}{self.text}"


class ConfigError(ValueError):
    """Says what is wrong in the configuration, and where. It has one mistake or several, one a line."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(Problem(entry) if isinstance(entry, str) else entry for entry in problems)
        super().__init__("\n".join(map(str, self.problems)))


class RightsError(ConfigError):
    """This process lacks a right that the server may have: its unit gives it capabilities."""


def label(owner: str, key: str) -> str:
    """Name a setting: ``[server] port`` or ``share data: users``. ``owner`` is the section, ``key`` may be empty."""
    if not key:
        return owner
    return f"{owner} {key}" if owner.startswith("[") else f"{owner}: {key}"


class Problems:
    """The mistakes that were found so far, and the places of all settings, from which mistakes get theirs.

    A setting is a key of an owner. An owner is ``[server]``, ``share data``, ``user alice`` and the like.
    """

    def __init__(self, lacks_rights: bool = False) -> None:
        """``lacks_rights``: this process can do less than the server, so what it lacks the right to is a warning."""
        self._lacks_rights = lacks_rights
        self.found: list[Problem] = []
        self.warnings: list[Problem] = []
        """What is not wrong, but seldom meant."""
        self.places: dict[tuple[str, str], Place] = {}

    def place(self, owner: str, key: str = "") -> Place:
        """Return where a setting was given, else where its section begins."""
        return self.places.get((owner, key)) or self.places.get((owner, ""), Place())

    def override(self, owner: str, option: str) -> None:
        """Note that an option of the command line replaces a whole section of the file."""
        for setting in [setting for setting in self.places if setting[0] == owner]:
            del self.places[setting]
        self.places[owner, ""] = Place(option=option)

    def add(self, owner: str, key: str, text: str) -> None:
        """Note a mistake."""
        self.found.append(Problem(text, label(owner, key), self.place(owner, key)))

    @contextmanager
    def of(self, owner: str, key: str) -> Iterator[None]:
        """Note what goes wrong inside as a mistake of this setting."""
        try:
            yield
        except ConfigError as error:
            for problem in error.problems:
                if self._lacks_rights and isinstance(error, RightsError):
                    text = f"{problem.text} (who runs this may not; the unit's server may)"
                    self.warnings.append(Problem(text, label(owner, key), self.place(owner, key)))
                else:
                    self.add(owner, key, problem.text)
        except ValueError as error:
            self.add(owner, key, str(error))

    def check(self, wrong: Iterable[tuple[str, str, ConfigError]]) -> None:
        """Note mistakes: owner, key, and what is wrong."""
        for owner, key, error in wrong:
            with self.of(owner, key):
                raise error

    def concern(self, *owners: str) -> bool:
        """Return whether a mistake was found in a setting whose name begins like one of these."""
        return any(problem.setting.startswith(owners) for problem in self.found)

    def finish(self) -> None:
        """Raise ``ConfigError`` if there are mistakes. They come in the order of the file."""
        if self.found:
            raise ConfigError(*sorted(dict.fromkeys(self.found), key=lambda problem: problem.place[:3]))
