"""What ``smb3server status`` shows of a report: the part that belongs to a user, a share or a client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from smb3server.status.model import AwayRecord, LockRecord, OpenRecord, Report, SessionRecord

_InShare = TypeVar("_InShare", LockRecord, AwayRecord, OpenRecord)


class Selection(NamedTuple):
    """The filters; None means everything. Case does not matter."""

    user: str | None = None
    """A name, with or without the domain."""
    share: str | None = None
    client: str | None = None
    """An address."""

    def apply(self, report: Report) -> Report:
        """Return the report with what is selected. Counts of the whole server stay as they are."""
        if self == Selection():
            return report
        sessions = [self._session(entry) for entry in report.sessions if self._wants(entry, report)]
        known = {entry.session for entry in sessions}
        numbers = {number for entry in sessions for number in entry.channels}
        users = {_plain(entry.user) for entry in sessions}
        shares = {name.casefold() for entry in sessions for name in entry.shares}
        lonely = self.user is None and self.share is None
        return msgspec.structs.replace(
            report,
            sessions=sessions,
            channels=[
                entry
                for entry in report.channels
                if entry.channel in numbers or (lonely and _host(entry.peer) == self._client)
            ],
            users=[entry for entry in report.users if _plain(entry.user) in users or _same(self.user, entry.user)],
            shares=[
                entry
                for entry in report.shares
                if (entry.share.casefold() in shares if self.share is None else _same(self.share, entry.share))
            ],
            locks=[entry for entry in self._in_share(report.locks) if entry.session in known],
            away=[
                entry
                for entry in self._in_share(report.away)
                if self.client is None and (self.user is None or _same(self.user, entry.user))
            ],
        )

    @property
    def _client(self) -> str:
        return (self.client or "").strip("[]").casefold()

    def _wants(self, session: SessionRecord, report: Report) -> bool:
        if self.user is not None and not _same(self.user, session.user):
            return False
        if self.share is not None and not any(_same(self.share, name) for name in session.shares):
            return False
        if self.client is None:
            return True
        hosts = {_host(entry.peer) for entry in report.channels if entry.channel in session.channels}
        return self._client in hosts | {session.client.casefold()}

    def _session(self, session: SessionRecord) -> SessionRecord:
        if self.share is None:
            return session
        return msgspec.structs.replace(session, opens=self._in_share(session.opens))

    def _in_share(self, entries: Iterable[_InShare]) -> list[_InShare]:
        return [entry for entry in entries if self.share is None or _same(self.share, entry.share)]


def _plain(user: str) -> str:
    """Return a user's name without the domain."""
    return user.rpartition("\\")[2].casefold()


def _same(wanted: str | None, name: str) -> bool:
    return wanted is not None and wanted.casefold() in (name.casefold(), _plain(name))


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0].strip("[]").casefold()
