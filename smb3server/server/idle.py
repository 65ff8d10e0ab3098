"""Ends sessions and connections that are not in use.

A session is idle when it has had no tree connect for ``idle_session_timeout`` seconds, or neither an open nor a message
on any of its connections. Its connections are closed with it, unless other sessions use them. A connection whose users
have all logged off is idle, too. Guest sessions are no exception. A session with open files is never idle while its
client is connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from smb3server.state.events import Events
from smb3server.state.objects import Connection, SessionState
from smb3server.state.sessions import Sessions

LOOKS = 4
"""Sweeps per timeout."""


class IdleSweep:
    """The periodic search for idle sessions and connections of one server. It runs while there are connections."""

    def __init__(self, sessions: Sessions, connections: Collection[Connection], timeout: float, events: Events) -> None:
        """``connections`` is the live collection of the server's connections. ``timeout`` is in seconds; with 0 nothing
        is ever idle."""
        self._events = events
        self._sessions = sessions
        self._connections = connections
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._since: dict[tuple[str, int], tuple[float, int]] = {}
        """By kind and identity: the time since when it has been unused, and the number of messages received by then."""

    def wake(self) -> None:
        """Start the timer, unless it runs already, because there is a connection."""
        if self._timer is None and self._timeout > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout / LOOKS, self._look, loop.time)

    def set_timeout(self, timeout: float) -> None:
        """Set the timeout in seconds; with 0 nothing is ever idle."""
        if timeout != self._timeout:
            self._timeout = timeout
            self.stop()
            if self._connections:
                self.wake()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, clock: Callable[[], float]) -> None:
        self._timer = None
        self.sweep(clock())
        if self._connections:
            self.wake()
        else:
            self._since.clear()

    def sweep(self, now: float) -> None:
        """End idle sessions and connections. ``now`` is in seconds of a monotonic clock."""
        before, self._since = self._since, {}
        for session in list(self._sessions.by_id.values()):
            if session.state is not SessionState.VALID or session.open_table:
                continue
            # A session without a tree connect cannot use messages for anything, so they do not count.
            messages = sum(map(_messages, session.channel_list)) if session.tree_connect_table else -1
            if self._unused(("session", session.session_id), messages, before, now):
                self._events.session_ended(session, session.connection, "idle")
                connections = list(session.channel_list)
                self._sessions.remove(session)
                for connection in connections:
                    # Clients expect this of an idle session: they connect and log on again when they need to.
                    if not connection.session_table:
                        connection.disconnect("idle")
        for connection in list(self._connections):
            if not connection.is_authenticated or connection.session_table:
                continue
            if self._unused(("connection", id(connection)), -1, before, now):
                connection.disconnect("idle")

    def _unused(
        self, entry: tuple[str, int], messages: int, before: dict[tuple[str, int], tuple[float, int]], now: float
    ) -> bool:
        """Note that ``entry`` is not in use. Return whether it has been unused for the whole timeout."""
        since, seen = before.get(entry, (now, messages))
        if seen != messages:
            since = now
        if now - since >= self._timeout:
            return True
        self._since[entry] = since, messages
        return False


def _messages(connection: Connection) -> int:
    """Return how many MessageIds the client has used so far."""
    window = connection.command_sequence_window
    return window.low + len(window.used)
