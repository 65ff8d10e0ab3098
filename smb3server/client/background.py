"""The threads that work for code which is not asynchronous: an event loop, and one that closes what was dropped.

A program may end, raise, fork or drop its files at any time. So nothing here waits where nobody may answer: not on the
loop's own thread, not in a garbage collection, not for what a parent process has, and not for long when the program
ends.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import io
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotDone
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
END_LIMIT = 10.0
"""Seconds that the end of the program waits for files that were left open, and then for the shares."""
_OWN_THREAD = (
    "a share of smb3server.client.sync cannot wait on the thread of its event loop, where progress functions are "
    "called: use it on another thread"
)
_IN_COLLECTION = "a file of a share cannot wait for the server in a garbage collection: it is closed later"
_ENDED = "the program is ending, and its shares are closed"


class Closable(Protocol):
    """A file object: what is needed of it here."""

    def close(self) -> None:
        """Write what is collected, and close."""


class Connected(Protocol):
    """A connected share: what is needed of it here."""

    async def close(self) -> None:
        """Log off and close the connections."""


class _Opened:
    """An open file: the object that the program has (``outer``), and those below it, the nearest first.

    Those below are kept here, so that a garbage collection meets the outer one alone. It would close them in any order,
    and lose what the outer ones have collected.
    """

    def __init__(self, name: str, outer: Closable, inner: tuple[Closable, ...]) -> None:
        self.name = name
        self.outer = weakref.ref(outer)
        self.inner = inner


class Background:
    """An event loop on a thread of its own, made when it is needed first, and the files and shares that are open."""

    def __init__(self) -> None:
        self._ended = False
        self._of_parents: list[object] = []
        """What a child process has of its parent. If it were collected, that could change what the parent uses."""
        self._begin()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forked)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closer: threading.Thread | None = None
        self._to_do: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """What the thread ``_closer`` does."""
        self._collecting: set[int] = set()
        """The threads in a garbage collection."""
        self._opened: dict[object, _Opened] = {}
        self._shares: set[Connected] = set()

    def _forked(self) -> None:
        """Begin anew in a child process, which has the memory of its parent's threads, and not the threads."""
        self._of_parents += [self._loop, self._to_do, self._opened, self._shares]
        self._begin()

    # The loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and wait for it. Interrupted, it is cancelled.

        Raises ``RuntimeError`` where nobody could answer: on the loop's own thread, and after the program's end.
        """
        try:
            self._check()
            future = asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _check(self) -> None:
        if self._ended:
            raise RuntimeError(_ENDED)
        if self._is_own_thread:
            raise RuntimeError(_OWN_THREAD)

    @property
    def _is_own_thread(self) -> bool:
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                runner, self._stop = asyncio.Runner(loop_factory=asyncio.new_event_loop), asyncio.Event()
                loop = runner.get_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(runner, self._stop), name="smb3server.client", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop

    @property
    def can_wait(self) -> bool:
        """Whether this thread may wait for a file. In a collection it may have any lock that the loop waits for."""
        return not self._ended and not self._is_own_thread and threading.get_ident() not in self._collecting

    # Files

    def opened(self, key: object, name: str, outer: Closable, *inner: Closable) -> None:
        """Note an open file until ``closed``: the object that the program gets, and those below it, nearest first."""
        with self._lock:
            if self._closer is None:
                self._closer = threading.Thread(
                    target=_do_all, args=(self._to_do,), name="smb3server.client.closer", daemon=True
                )
                self._closer.start()
                if self._note_collection not in gc.callbacks:
                    gc.callbacks.append(self._note_collection)
        self._opened[key] = _Opened(name, outer, inner)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting.add(threading.get_ident())
        else:
            self._collecting.discard(threading.get_ident())

    def check_file(self) -> None:
        """Raise ``RuntimeError`` where a file must not wait for the loop."""
        self._check()
        if not self.can_wait:
            raise RuntimeError(_IN_COLLECTION)

    def closed(self, key: object) -> bool:
        """Forget a file. Return whether it was open, and is this process's own."""
        return self._opened.pop(key, None) is not None and not self._ended

    def dropped(self, key: object, outer: Closable) -> None:
        """Close a file that the program does not have any more; at once where this thread may wait."""
        opened = self._opened.get(key)
        if opened is None or self._ended:
            return
        try:
            warnings.warn(f"unclosed file {opened.name!r}", ResourceWarning, stacklevel=3, source=outer)
        finally:
            if self.can_wait:
                outer.close()
            else:
                self._to_do.put(functools.partial(_close, outer, opened.name))

    def _settled(self, limit: float) -> bool:
        """Wait for what the closer has to do. Return whether it was done within ``limit`` seconds."""
        if self._closer is None:
            return True
        done = threading.Event()
        self._to_do.put(done.set)
        return done.wait(limit)

    # Shares

    def connected(self, share: Connected) -> None:
        """Note a share until ``disconnect``."""
        self._shares.add(share)

    def disconnect(self, share: Connected) -> None:
        """Close a share, after files that were dropped. Do nothing if it was closed, or is a parent process's."""
        if share in self._shares and not self._ended:
            self._check()
            self._settled(END_LIMIT)
            self._shares.discard(share)
            self.run(share.close())

    # The end

    def _end(self) -> None:
        """Close what the program left open. Nothing here waits for anything afterwards."""
        left = [(entry.outer() or next(iter(entry.inner), None), entry.name) for entry in list(self._opened.values())]
        files = [(file, name) for file, name in left if file is not None]
        names = ", ".join(sorted({name for _, name in files}))
        # A text file that the program put around one of them has data of its own, which goes first.
        wrappers = gc.get_referrers(*(file for file, _ in files)) if files else []
        for file, name in [*((one, names) for one in wrappers if isinstance(one, io.TextIOWrapper)), *files]:
            self._to_do.put(functools.partial(_close, file, name))
        del left, files, wrappers
        if not self._settled(END_LIMIT):
            _say(f"{names}: not closed within {END_LIMIT:.0f} s; what was written last may be lost")
        self._ended = True
        if self._loop is not None and self._thread is not None:
            ending = asyncio.run_coroutine_threadsafe(_close_all(list(self._shares)), self._loop)
            try:
                ending.result(END_LIMIT)
            except NotDone:
                _say(f"the shares were not closed within {END_LIMIT:.0f} s")
            # Whoever still waits for the loop gets a CancelledError.
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(1)
        if self._note_collection in gc.callbacks:
            gc.callbacks.remove(self._note_collection)


def _serve(runner: asyncio.Runner, stop: asyncio.Event) -> None:
    with runner:
        runner.run(stop.wait())


async def _close_all(shares: list[Connected]) -> None:
    for result in await asyncio.gather(*(share.close() for share in shares), return_exceptions=True):
        if isinstance(result, Exception):
            _say(f"a share was not closed: {result}")


def _do_all(to_do: SimpleQueue[Callable[[], object]]) -> None:
    while True:
        to_do.get()()


def _close(file: Closable, name: str) -> None:
    try:
        file.close()
    except (Exception, CancelledError) as error:
        # Nobody is there who could handle it, as for a file that Python closes.
        _say(f"{name}: not closed, what was written last may be lost: {error or type(error).__name__}")


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(f"smb3server.client: {text}", file=sys.stderr, flush=True)
