"""End sessions and connections that nobody uses.

A session ends that has had no tree connect for ``idle_session_timeout`` seconds, or neither an open nor a message on
any of its connections; its connections go with it, unless others use them. So does a connection that its users have
logged off. Guests' are no exception. A session with open files stays for as long as its client is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from smb3server.state.objects import Connection, SessionState
from smb3server.state.sessions import Sessions

log = logging.getLogger(__name__)

LOOKS = 4
"""Looks at all sessions within the timeout."""


class IdleSweep:
    """Looks at a server's sessions now and then, while it has connections."""

    def __init__(self, sessions: Sessions, connections: Collection[Connection], timeout: float) -> None:
        """``connections``: all of the server's, as they are at any time. ``timeout``: seconds; with 0 nothing is ever
        idle."""
        self._sessions = sessions
        self._connections = connections
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._since: dict[tuple[str, int], tuple[float, int]] = {}
        """Since when each was seen unused, and how many messages had come by then."""

    def wake(self) -> None:
        """There is a connection: look at it in time."""
        if self._timer is None and self._timeout > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout / LOOKS, self._look, loop.time)

    def stop(self) -> None:
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
        """End what is idle at ``now``, seconds of any clock that runs on."""
        before, self._since = self._since, {}
        for session in list(self._sessions.by_id.values()):
            if session.state is not SessionState.VALID or session.open_table:
                continue
            # Without a tree connect there is nothing that messages could be good for.
            messages = sum(map(_messages, session.channel_list)) if session.tree_connect_table else -1
            if self._unused(("session", session.session_id), messages, before, now):
                log.info("%s: session of %s is idle", session.connection.client_name, session.identity)
                connections = list(session.channel_list)
                self._sessions.remove(session)
                for connection in connections:
                    # What clients expect of an idle server: they connect and log on again when they have need to.
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
        """Note that ``entry`` is not in use, and tell whether it has not been for the whole timeout."""
        since, seen = before.get(entry, (now, messages))
        if seen != messages:
            since = now
        if now - since >= self._timeout:
            return True
        self._since[entry] = since, messages
        return False


def _messages(connection: Connection) -> int:
    """Count the messages that came, as far as they took MessageIds."""
    window = connection.command_sequence_window
    return window.low + len(window.used)
