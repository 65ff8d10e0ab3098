"""How much of the server one user may have, over all connections: nobody takes what the others need.

Connections and opens are few in all: a user may have ``max_user_share`` of those that no other user has. With the
default of one half a first user who takes all they can leaves half, a second one a quarter, and so on: there is always
something left for who comes next. Sessions, locks, watchers and space reserved ahead have plain numbers.

All guests and anonymous users are one user: a guest's name is chosen freely.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from smb3server.settings.server import Settings
from smb3server.wire.status import NtStatus, StatusError

GUESTS = "\0guests"
LEAST = 16
"""Connections and opens that a user may have whatever others have, as long as there are any."""


class Who(Protocol):
    """What tells users apart (``access.identity.Identity``)."""

    @property
    def guest(self) -> bool: ...

    @property
    def anonymous(self) -> bool: ...

    @property
    def name(self) -> str: ...


class Usage:
    """What one user has."""

    __slots__ = (
        "away",
        "connections",
        "lent",
        "locks",
        "name",
        "opens",
        "reserved",
        "sessions",
        "waiting",
        "watchers",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.sessions = 0
        self.opens = 0
        self.locks = 0
        """Byte-range locks held."""
        self.watchers = 0
        self.reserved = 0
        """Bytes reserved behind the ends of open files."""
        self.lent = 0
        """Bytes of large buffers that requests and unsent answers have."""
        self.waiting: deque[Callable[[], None]] = deque()
        """To be called, one after the other, when buffers come back."""
        self.away: dict[object, Callable[[], None]] = {}
        """Opens that wait for their client and may be given up for others, the longest away first."""

    @property
    def idle(self) -> bool:
        return not (self.connections or self.sessions or self.opens or self.lent)

    def give_back(self, size: int) -> None:
        """Count a buffer of ``size`` bytes no longer: it is free again."""
        self.lent -= size
        if self.waiting:
            self.call_next()

    def call_next(self) -> None:
        """Let whoever waits longest for a buffer try."""
        if self.waiting:
            # Not from within whatever frees buffers.
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        if self.waiting:
            self.waiting.popleft()()


class Ceilings:
    """A server's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._users: dict[str, Usage] = {}

    def of(self, who: Who | None) -> Usage:
        if who is None or who.guest or who.anonymous:
            return self.of_name(GUESTS)
        # Without the domain: with NTLM it is what the client says.
        return self.of_name(who.name.casefold())

    def of_name(self, name: str) -> Usage:
        usage = self._users.get(name)
        if usage is None:
            self._tidy()
            usage = self._users[name] = Usage(name)
        return usage

    def _tidy(self) -> None:
        """Forget users who have nothing. Only when a user comes, so that nobody's ``Usage`` is replaced under him."""
        if len(self._users) >= 1024 and len(self._users) & 0x3FF == 0:
            self._users = {name: usage for name, usage in self._users.items() if not usage.idle}

    def users(self) -> list[Usage]:
        """Those who have anything."""
        return [usage for usage in self._users.values() if not usage.idle]

    def _within(self, own: int, all_of_them: int, limit: int) -> bool:
        """Whether a user that has ``own`` of ``all_of_them`` may have one more, of ``limit`` that there can be."""
        others = all_of_them - own
        return own < LEAST or own + 1 <= (limit - others) * self._settings.max_user_share

    def check_session(self, usage: Usage, connections: int, counted: bool) -> None:
        """REQUEST_NOT_ACCEPTED if the user has too many sessions; or too many of ``connections``, which are all there
        are, where the one it comes on is not ``counted`` as anybody's yet."""
        settings = self._settings
        if usage.sessions >= settings.max_sessions_per_user:
            raise StatusError(NtStatus.REQUEST_NOT_ACCEPTED)
        if not counted and not self._within(usage.connections, connections - 1, settings.max_connections):
            raise StatusError(NtStatus.REQUEST_NOT_ACCEPTED)

    def check_open(self, usage: Usage, opens: int, limit: int) -> None:
        """INSUFFICIENT_RESOURCES if the user may have no more of ``opens`` there are. An open of theirs whose client is
        away gives way first (MS-SMB2 3.3.2.2 lets a server close it at any time)."""
        while opens >= limit or not self._within(usage.opens, opens, limit):
            if not usage.away:
                raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
            before = usage.opens
            longest = next(iter(usage.away))
            close = usage.away.pop(longest)
            close()
            opens -= before - usage.opens

    def check_locks(self, usage: Usage, more: int) -> None:
        if usage.locks + more > self._settings.max_locks_per_user:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)

    def check_watchers(self, usage: Usage) -> None:
        if usage.watchers >= self._settings.max_watchers_per_user:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)

    def may_lend(self, usage: Usage, size: int) -> bool:
        """Whether the user may have a buffer of ``size`` bytes now. One is always possible."""
        return not usage.lent or usage.lent + size <= self._settings.max_lent_per_user

    def room_to_reserve(self, usage: Usage) -> int:
        """Bytes."""
        return max(self._settings.max_reserved_per_user - usage.reserved, 0)
