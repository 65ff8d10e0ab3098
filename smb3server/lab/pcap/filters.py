"""Which commands and verdicts a user of the command wants to see."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.verdicts import Breach


@dataclass
class Filter:
    """Conditions on what is shown. Empty ones do not matter; of several, all must hold."""

    connections: frozenset[int] = frozenset()
    sessions: frozenset[int] = frozenset()
    commands: frozenset[str] = frozenset()
    """Names in capitals."""
    file: str = ""
    """Pattern with wildcards, without regard to case."""
    statuses: frozenset[str] = frozenset()
    """Names with or without STATUS_, in capitals, or numbers as ``0xc0000034``."""
    errors: bool = False
    rules: frozenset[str] = frozenset()
    """Ids of rules, or beginnings of them that end in a dot."""
    first: int = 0
    """First frame."""
    last: int = 0
    """Last frame; 0: to the end."""

    def _frame(self, number: int) -> bool:
        return number >= self.first and (not self.last or number <= self.last)

    def shows(self, record: CommandRecord) -> bool:
        """Return whether a command is shown."""
        status = record.status_name
        numbers = set() if record.status is None else {f"0X{record.status:08X}"}
        return (
            self._frame(record.number or record.reply)
            and (not self.connections or record.connection in self.connections)
            and (not self.sessions or record.session_id in self.sessions)
            and (not self.commands or record.name in self.commands)
            and (not self.file or fnmatch.fnmatchcase(record.file.casefold(), self.file.casefold()))
            and (not self.statuses or bool(self.statuses & {status, status.removeprefix("STATUS_"), *numbers}))
            and (not self.errors or record.failed)
        )

    def chooses(self, breach: Breach) -> bool:
        """Return whether a verdict is shown, and counts for the exit status."""
        return (
            self._frame(breach.number)
            and (not self.connections or breach.connection in self.connections)
            and self.wants_rule(breach.rule.id)
        )

    def wants_rule(self, identifier: str) -> bool:
        """Return whether a rule is shown."""
        return not self.rules or any(
            identifier == rule or (rule.endswith(".") and identifier.startswith(rule)) for rule in self.rules
        )
