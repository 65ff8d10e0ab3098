"""The only thread that writes to the kernel's RDMA descriptors.

Linux accepts a write(2) on ``/dev/infiniband/rdma_cm`` and ``uverbs*`` only from a thread whose credentials are the
same object as when the file was opened (``ib_safe_file_access`` in include/rdma/ib.h), else it returns EACCES. Each
setfsuid(2) and capset(2) that changes something makes a new object, even if it restores the old values. The server's
event loop does that when it acts as a user, and when it drops privileges. So every function that may open or write is
called on this thread, whose credentials do not change while it runs.

There is one such thread in a process: librdmacm opens a device once, and all users of the device share its descriptor.

Any thread may read the descriptors (events of completion queues and devices) and use mapped memory.
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
"""Name of the thread. The code that sets the privileges of threads recognizes it by this name."""
_ANYWHERE = frozenset((
    "ibv_get_device_name", "ibv_get_cq_event", "ibv_ack_cq_events", "ibv_get_async_event", "ibv_ack_async_event",
    "ibv_event_type_str", "ibv_wc_status_str", "rdma_ack_cm_event", "rdma_get_src_port",
))  # fmt: skip
"""Functions that do not write, so any thread may call them. ``rdma_get_cm_event`` is not among them: it uses write(2),
and opens devices."""

Job = Callable[[], None]
_Batches = SimpleQueue[list[Job]]


@functools.cache
def _started() -> tuple[_Batches, threading.Thread]:
    # The thread ends with the process, as the descriptors that it opened do.
    batches: _Batches = SimpleQueue()
    thread = threading.Thread(target=_work, args=(batches,), name=NAME, daemon=True)
    thread.start()
    return batches, thread


_starting = threading.Lock()


class VerbsThread:
    """The access of one event loop to the thread, which runs the loop's jobs in the order in which they were submitted.

    The first instance of a process starts the thread. The garbage collector may finalize objects of a loop
    (``smbdirect.rdma.pool``) on any thread, so ``call`` may be called on any thread, including the verbs thread.
    Only the loop's own thread may use the other methods, except ``tell``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        with _starting:
            self._batches, self._thread = _started()
        self._owner = threading.get_ident()
        self._gathered: list[Job] = []

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` on the thread and return its result. Its ``errno`` becomes the caller's
        (``ctypes.get_errno``), and its exceptions are raised here."""
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
        """Run ``job`` soon, after all jobs submitted before. The jobs of one turn of the loop are one batch."""
        self._gathered.append(job)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._send)

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function`` on the loop's thread. To be called on the verbs thread."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed, and so were all objects on it.
            log.debug("verbs: the loop of a result was closed: %s", function)

    def bring(self, libraries: Libraries) -> Libraries:
        """Return the libraries with wrappers that call functions which may write on the thread."""
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
    """A library whose functions are called on the thread, except those in ``_ANYWHERE``."""

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
