"""What a capture shows about each rule: how often it was kept, who broke it, and what could not be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from smb3server.tools.pcap.rules import Rule
from smb3server.tools.pcap.tcp import Direction


class Breach(NamedTuple):
    """A rule broken on the wire."""

    number: int
    """Frame."""
    rule: Rule
    connection: int
    by: str
    """client or server."""
    text: str

    def __str__(self) -> str:
        return f"frame {self.number}: {self.text} [{self.rule.id}, by the {self.by}: {self.rule.section}]"


class Gap(NamedTuple):
    """Something that could not be judged."""

    number: int
    """Frame from which on."""
    connection: int
    """0: the whole capture."""
    reason: str
    secret: bool = False
    """Whether a password or a key would help."""

    def __str__(self) -> str:
        return f"frame {self.number}: not judged: {self.reason}"


class Verdicts:
    """The verdicts of one connection.

    ``connection`` is its number. ``report`` is called with each breach at once, so that nothing has to be kept.
    """

    def __init__(self, connection: int, report: Callable[[Breach | Gap], None]) -> None:
        self.connection = connection
        self._report = report
        self.checked: Counter[str] = Counter()
        """Times that each rule was looked at, by its id."""
        self.broken: Counter[str] = Counter()
        self._reasons: set[str] = set()

    def check(self, rule: Rule, kept: bool, number: int, by: Direction, text: str, *values: object) -> bool:
        """Note whether ``rule`` is kept in frame ``number``, and return it.

        ``text`` is a format for ``values``. It is used if the rule is broken.
        """
        self.checked[rule.id] += 1
        if not kept:
            self.broken[rule.id] += 1
            self._report(Breach(number, rule, self.connection, by.sender, text.format(*values)))
        return kept

    def unjudged(self, number: int, reason: str, secret: bool = False) -> None:
        """Note that something cannot be judged from frame ``number`` on; each reason once.

        ``secret`` means that a password or a key would help.
        """
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._report(Gap(number, self.connection, reason, secret))
