"""Questions to controllers that block, asked on threads while the event loop goes on. [MS-APDS 3.1]"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from smb3server.auth.guessing import LogonDelayed

_Answer = TypeVar("_Answer")

_THREADS = 4
_MAX_QUESTIONS = 256
_KEPT = 60.0
"""Seconds for which an answer is kept for somebody who has not come for it."""
_SHORTEST_WAIT, _LONGEST_WAIT = 0.02, 0.5


class TooManyQuestions(Exception):
    """Too many questions are waiting for controllers."""


class _Question(NamedTuple):
    asked: float
    answer: Future[Any]


class Questions:
    """The questions of logons in progress. Used on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[Hashable, _Question] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "domain")

    def ask(self, key: Hashable, question: Callable[[], _Answer]) -> _Answer:
        """Return the answer to ``question``, which runs on a thread, or raise what it raises.

        ``key`` says which question it is. Raises ``LogonDelayed`` while there is no answer: ask again then. Raises
        ``TooManyQuestions``. ``forget`` it after the last time."""
        known = self._open.get(key)
        if known is None:
            self._make_room()
            known = self._open[key] = _Question(self._clock(), self._threads.submit(question))
        if not known.answer.done():
            waited = self._clock() - known.asked
            raise LogonDelayed(min(max(waited / 4, _SHORTEST_WAIT), _LONGEST_WAIT))
        return known.answer.result()  # type: ignore[no-any-return]

    def forget(self, key: Hashable) -> None:
        """Forget an answer."""
        self._open.pop(key, None)

    def _make_room(self) -> None:
        oldest = self._clock() - _KEPT
        for key in [key for key, one in self._open.items() if one.answer.done() and one.asked < oldest]:
            del self._open[key]
        if len(self._open) >= _MAX_QUESTIONS:
            raise TooManyQuestions("too many logons are waiting for a controller")

    def close(self) -> None:
        """Ask nothing more. What is being asked ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
