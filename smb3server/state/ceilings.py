"""Limits on what one user may have of the server, over all connections, so that others can work.

The server has few connections and opens. A user may have ``max_user_share`` of those that no other user has. With the
default of one half, a first user who takes as many as possible leaves half, a second one a quarter, and so on: some
always remain for the next user. Sessions, locks, watchers and reserved space have fixed limits per user.

All guests and anonymous users count as one user, because guests choose their names freely.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.access.identity import Identity
from smb3server.settings.server import Settings
from smb3server.wire.status import NtStatus, StatusError

GUESTS = "\0guests"
MOST_EXPANDED = 32 << 20
"""Bytes of messages of one user that are decompressed at a time: four of the largest. Clients send them in a few
bytes."""
LEAST = 16
"""Connections and opens that a user may have independently of other users, as far as there are any."""


@dataclass(slots=True, eq=False)
class Usage:
    """What one user has of the server. A number counts the items named like it, if it has no other description."""

    name: str
    max_lent: int
    """Most bytes that ``lent`` should count."""
    connections: int = 0
    sessions: int = 0
    opens: int = 0
    locks: int = 0
    """Byte-range locks held."""
    watchers: int = 0
    reserved: int = 0
    """Bytes reserved behind the ends of open files."""
    lent: int = 0
    """Bytes of large buffers that requests and unsent answers have."""
    expanded: int = 0
    """Bytes of messages that were decompressed, until they are answered."""
    bytes_read: int = 0
    """Bytes that READs returned through opens that are closed by now. Each open counts its own until then."""
    bytes_written: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    """To be called, one after the other, when buffers come back, or messages that were decompressed are answered."""
    away: dict[object, Callable[[], None]] = field(default_factory=dict)
    """Opens that wait for their client and may be closed to make room, with the function that closes them.

    The one that has waited longest is first."""

    @property
    def idle(self) -> bool:
        """Whether the user has no connection, session, open or buffer."""
        return not (self.connections or self.sessions or self.opens or self.lent or self.expanded)

    def may_lend(self, size: int) -> bool:
        """Return whether the user may have a buffer of ``size`` bytes now. A user without any may always have one."""
        return not self.lent or self.lent + size <= self.max_lent

    def may_expand(self, size: int) -> bool:
        """Return whether the user may have a message of ``size`` bytes decompressed now. One is always possible."""
        return not self.expanded or self.expanded + size <= MOST_EXPANDED

    def expand(self, size: int) -> None:
        """Count a message of ``size`` bytes that is decompressed. Negative: no longer, so that the next waiting request
        may try."""
        self.expanded += size
        if size < 0 and self.waiting:
            self.call_next()

    def give_back(self, size: int) -> None:
        """Stop counting a buffer of ``size`` bytes that is free again, and let the next waiting request try."""
        self.lent -= size
        if self.waiting:
            self.call_next()

    def call_next(self) -> None:
        """Schedule the request that has waited longest for a buffer."""
        if self.waiting:
            # Not at once: the caller may be in the middle of freeing buffers.
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        if self.waiting:
            self.waiting.popleft()()


class Ceilings:
    """The limits of one server, with the usage of each user."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._users: dict[str, Usage] = {}

    def of(self, who: Identity | None) -> Usage:
        """Return the usage of a user. None counts as a guest."""
        if who is None or who.guest or who.anonymous:
            return self.of_name(GUESTS)
        # Without the domain: with NTLM the client chooses it.
        return self.of_name(who.name.casefold())

    def of_name(self, name: str) -> Usage:
        """Return the usage of a user by case-folded name, or of all guests by ``GUESTS``."""
        usage = self._users.get(name)
        if usage is None:
            self._tidy()
            usage = self._users[name] = Usage(name, self._settings.max_lent_per_user)
        return usage

    def settings_changed(self) -> None:
        """Take over the limits that are kept with each user."""
        for usage in self._users.values():
            usage.max_lent = self._settings.max_lent_per_user

    def _tidy(self) -> None:
        """Remove users who have nothing. Only before a user is added, so that no ``Usage`` in use is replaced."""
        if len(self._users) >= 1024 and len(self._users) & 0x3FF == 0:
            self._users = {name: usage for name, usage in self._users.items() if not usage.idle}

    def users(self) -> list[Usage]:
        """Return the usage of each user who has anything."""
        return [usage for usage in self._users.values() if not usage.idle]

    def _within(self, own: int, all_of_them: int, limit: int) -> bool:
        """Return whether a user who has ``own`` of ``all_of_them`` may have one more, where ``limit`` can exist."""
        others = all_of_them - own
        return own < LEAST or own + 1 <= (limit - others) * self._settings.max_user_share

    def check_session(self, usage: Usage, connections: int, counted: bool) -> None:
        """Raise REQUEST_NOT_ACCEPTED if a new session would be one session or connection too many for the user.

        ``connections``: how many the server has in all. ``counted``: whether the new session's connection already
        counts for a user."""
        settings = self._settings
        if usage.sessions >= settings.max_sessions_per_user:
            raise StatusError(NtStatus.REQUEST_NOT_ACCEPTED)
        if not counted and not self._within(usage.connections, connections - 1, settings.max_connections):
            raise StatusError(NtStatus.REQUEST_NOT_ACCEPTED)

    def admits(self, usage: Usage, opens: int, limit: int) -> bool:
        """Return whether the user may have one more open, while all others stay. The arguments are those of
        ``check_open``."""
        return opens < limit and (usage.opens < LEAST or self._within(usage.opens, opens, limit))

    def check_open(self, usage: Usage, opens: int, limit: int) -> None:
        """Raise INSUFFICIENT_RESOURCES if the user may have no more opens. [MS-SMB2 3.3.2.2]

        First close opens of the user whose client is away: the section lets a server do that at any time. ``opens``:
        how many the server has in all. ``limit``: how many it can have."""
        while not self.admits(usage, opens, limit):
            if not usage.away:
                raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
            before = usage.opens
            longest = next(iter(usage.away))
            close = usage.away.pop(longest)
            close()
            opens -= before - usage.opens

    def check_locks(self, usage: Usage, more: int) -> None:
        """Raise INSUFFICIENT_RESOURCES if the user may not have ``more`` further locks."""
        if usage.locks + more > self._settings.max_locks_per_user:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)

    def check_watchers(self, usage: Usage) -> None:
        """Raise INSUFFICIENT_RESOURCES if the user may have no further watcher."""
        if usage.watchers >= self._settings.max_watchers_per_user:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)

    def room_to_reserve(self, usage: Usage) -> int:
        """Return how many more bytes the user may reserve."""
        return max(self._settings.max_reserved_per_user - usage.reserved, 0)
