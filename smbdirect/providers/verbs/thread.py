"""The one thread that writes to the kernel's RDMA descriptors.

Linux takes a write(2) on ``/dev/infiniband/rdma_cm`` and ``uverbs*`` only from a thread whose credentials are the very
object that opened them (``ib_safe_file_access`` in include/rdma/ib.h), else EACCES. Each setfsuid(2) and capset(2) that
changes something makes a new object, also when the old values are put back. The server's event loop does that when it
acts as a user, and when it gives privileges up. So whatever may open or write is called here, on a thread whose
credentials nobody changes once it runs.

There is one in a process: librdmacm opens a device once, and its descriptor serves all who use the device from then on.

Reading the descriptors is free (events of completion queues and devices), and so is memory that is mapped.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

from smbdirect.providers.verbs.abi import Libraries

log = logging.getLogger(__name__)

NAME = "verbs"
"""Of the thread: whoever gives threads their privileges knows it by this."""
_ANYWHERE = frozenset(
    {
        "ibv_get_device_name",
        "ibv_get_cq_event",
        "ibv_ack_cq_events",
        "ibv_get_async_event",
        "ibv_ack_async_event",
        "ibv_event_type_str",
        "ibv_wc_status_str",
        "rdma_ack_cm_event",
        "rdma_get_src_port",
    }
)
"""Functions that never write. ``rdma_get_cm_event`` is none of them: it asks by write(2), and opens devices."""

Job = Callable[[], None]
_Batches = SimpleQueue[list[Job]]


@functools.cache
def _started() -> tuple[_Batches, threading.Thread]:
    # The thread ends with the process: what it opened stays open as long.
    batches: _Batches = SimpleQueue()
    thread = threading.Thread(target=_work, args=(batches,), name=NAME, daemon=True)
    thread.start()
    return batches, thread


_starting = threading.Lock()


class VerbsThread:
    """The thread as one event loop sees it: runs what the loop gives it, in the order in which it was given.

    The first of a process starts the thread.

    The garbage collector may end what belongs to a loop (``smbdirect.transport.pool``) on any thread: ``call`` may
    be called on each of them, on the verbs thread itself, too. Only the loop's own thread may use the rest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        with _starting:
            self._batches, self._thread = _started()
        self._owner = threading.get_ident()
        self._gathered: list[Job] = []

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Wait for the function's result. Its ``errno`` is the caller's then (``ctypes.get_errno``), and what it raises
        is raised here."""
        if threading.current_thread() is self._thread:
            return function(*arguments)
        done = threading.Lock()
        done.acquire()
        outcome = _Outcome()

        def job() -> None:
            try:
                outcome.value = function(*arguments)
                outcome.errno = ctypes.get_errno()
            except BaseException as error:
                outcome.error = error
            finally:
                done.release()

        if threading.get_ident() == self._owner:
            self._gathered.append(job)
            self._send()
        else:
            self._batches.put([job])
        done.acquire()
        if outcome.error is not None:
            raise outcome.error
        ctypes.set_errno(outcome.errno)
        return outcome.value

    def hand(self, job: Job) -> None:
        """Have it run soon, after everything given before. What is handed in one turn of the loop goes as one batch."""
        self._gathered.append(job)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._send)

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Called on the thread: call the function on the loop's."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed, and everything that lived on it is gone.
            log.debug("a result of verbs that nobody waits for: %s", function)

    def bring(self, libraries: Libraries) -> Libraries:
        """The libraries, their functions that may write being called on the thread."""
        return Libraries(*(cast(ctypes.CDLL, _Brought(library, self.call)) for library in libraries))

    def _send(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._batches.put(gathered)


class _Outcome:
    value: Any = None
    errno = 0
    error: BaseException | None = None


class _Brought:
    """A library whose functions are called on the thread."""

    def __init__(self, library: Any, call: Callable[..., Any]) -> None:
        self._library = library
        self._call = call

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name not in _ANYWHERE:
            function = functools.partial(self._call, function)
        setattr(self, name, function)
        return function


def _work(batches: _Batches) -> None:
    while True:
        batch = batches.get()
        for job in batch:
            try:
                job()
            except Exception:
                log.exception("verbs: %s", job)
        del batch, job
