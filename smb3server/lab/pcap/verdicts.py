"""What a capture shows about each rule: how often it was kept, who broke it, and what could not be judged."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from smb3server.lab.pcap.rules import Rule
from smb3server.lab.pcap.tcp import Direction


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


_DOUBT = 256
"""Messages of a connection after which a breach is certain.

A loss of the capture shows itself late: when bytes do not come that others have acknowledged. Until then, answers to
messages that were lost look like breaches.
"""


class Verdicts:
    """The verdicts of one connection.

    ``connection`` is its number. ``report`` is called with each breach as soon as it is certain, so that nothing has to
    be kept.
    """

    def __init__(self, connection: int, report: Callable[[Breach | Gap], None]) -> None:
        self.connection = connection
        self._report = report
        self.checked: Counter[str] = Counter()
        """Times that each rule was looked at, by its id."""
        self.broken: Counter[str] = Counter()
        self._reasons: set[str] = set()
        self._doubtful: deque[tuple[int, Breach]] = deque()
        """Breaches that a loss may explain, and the message in which each was found."""
        self._messages = 0

    def check(self, rule: Rule, kept: bool, number: int, by: Direction, text: str, *values: object) -> bool:
        """Note whether ``rule`` is kept in frame ``number``, and return it.

        ``text`` is a format for ``values``. It is used if the rule is broken.
        """
        self.checked[rule.id] += 1
        if not kept:
            breach = Breach(number, rule, self.connection, by.sender, text.format(*values))
            if rule.history:
                self._doubtful.append((self._messages, breach))
            else:
                self._certain(breach)
        return kept

    def _certain(self, breach: Breach) -> None:
        self.broken[breach.rule.id] += 1
        self._report(breach)

    def message(self) -> None:
        """Note that one more message of the connection was read."""
        self._messages += 1
        while self._doubtful and self._doubtful[0][0] + _DOUBT < self._messages:
            self._certain(self._doubtful.popleft()[1])

    def lost(self, number: int, reason: str) -> None:
        """Note in frame ``number`` that the capture has a loss, which may explain what looked like breaches."""
        self._doubtful.clear()
        self.unjudged(number, reason)

    def finish(self) -> None:
        """Report what was in doubt: the connection has ended without a loss."""
        while self._doubtful:
            self._certain(self._doubtful.popleft()[1])

    def unjudged(self, number: int, reason: str, secret: bool = False) -> None:
        """Note that something cannot be judged from frame ``number`` on; each reason once.

        ``secret`` means that a password or a key would help.
        """
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._report(Gap(number, self.connection, reason, secret))
