"""The parent of the processes: it starts them, starts those anew that die, and ends all of them.

It serves nobody and reads nothing from the network. Each process has a socket to it. The parent learns there that the
process is ready and alive (the messages of sd_notify), and the process that the parent has died: then it ends, too.
[fork(2), unix(7): SOCK_SEQPACKET, sd_notify(3)]
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.config.processes import FIRST
from smb3server.process.service_manager import ServiceManager

Child = Callable[[int, bool, socket.socket], int]
"""Runs one process until its end, and returns its exit status. It gets its number, whether no other one runs yet, and
its socket to the parent."""

FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds before a process that died is started anew: doubled as long as it dies before it is ready."""
STOP_SECONDS = 25.0
"""How long the processes may take to end, before they are killed."""
_MESSAGE = 4096
_TICK = 1.0


@dataclass(slots=True)
class _Running:
    """One process."""

    number: int
    pid: int = 0
    """0 while there is none."""
    channel: socket.socket | None = None
    ready: bool = False
    status: str = ""
    heard: float = 0.0
    """When it last gave a sign of life (monotonic seconds)."""
    due: float = 0.0
    """When it is started anew."""
    delay: float = FIRST_DELAY


@dataclass(slots=True)
class Supervisor:
    """The parent. Call ``run`` once, in a process without threads and without an event loop."""

    count: int
    child: Child
    manager: ServiceManager
    _children: list[_Running] = field(default_factory=list)
    _stopping: float | None = None
    """When the processes are killed; None while they are to run."""
    _status: int = 0
    _was_ready: bool = False

    def run(self) -> int:
        """Run the processes until a signal, and return the exit status: in the parent, and also in each child."""
        self._children = [_Running(number) for number in range(FIRST, self.count + 1)]
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _noted)
        while self._stopping is None or any(child.pid for child in self._children):
            for child in self._children:
                if self._is_due(child):
                    theirs = self._start(child)
                    if theirs is not None:
                        wake.close()
                        waker.close()
                        return self.child(child.number, not self._was_ready and child.number == FIRST, theirs)
            self._wait(wake)
            self._reap()
            self._judge()
        self.manager.close()
        return self._status

    # Start

    def _is_due(self, child: _Running) -> bool:
        """Return whether a process has to be started: the others need what the first one writes down."""
        if child.pid or self._stopping is not None or child.due > time.monotonic():
            return False
        return child.number == FIRST or self._was_ready or self._children[0].ready

    def _start(self, child: _Running) -> socket.socket | None:
        """Start a process. Return None here, and its socket to the parent in the process itself."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            ours.close()
            # Or the others would not learn that the parent is gone.
            for other in self._children:
                if other.channel is not None:
                    other.channel.close()
            self.manager.close()
            return theirs
        theirs.close()
        ours.setblocking(False)
        child.pid, child.channel, child.ready, child.heard = pid, ours, False, time.monotonic()
        return None

    # Events

    def _wait(self, wake: socket.socket) -> None:
        """Wait for a signal, for a message, or for the next look at the time."""
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            for child in self._children:
                if child.channel is not None:
                    selector.register(child.channel, selectors.EVENT_READ, child)
            for key, _ in selector.select(_TICK):
                if key.data is not None:
                    self._hear(key.data)
        with contextlib.suppress(BlockingIOError):
            for number in wake.recv(_MESSAGE):
                self._signalled(number)

    def _signalled(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stop(0)
        elif number == signal.SIGHUP and self._children[0].pid:
            # It asks the others.
            os.kill(self._children[0].pid, signal.SIGHUP)

    def _hear(self, child: _Running) -> None:
        """Read a message of a process."""
        assert child.channel is not None
        try:
            message = child.channel.recv(_MESSAGE)
        except OSError:
            message = b""
        if not message:
            child.channel.close()
            child.channel = None
            return
        child.heard = time.monotonic()
        for line in message.decode(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key == "READY" and not child.ready:
                child.ready, child.delay = True, FIRST_DELAY
            elif key == "STATUS":
                child.status = value
        if all(one.ready for one in self._children) and not self._was_ready:
            self._was_ready = True
            print("ready:", "; ".join(one.status for one in self._children), flush=True)
            self.manager.ready(self._describe())

    def _describe(self) -> str:
        return "; ".join(f"process {one.number}: {one.status if one.pid else 'is down'}" for one in self._children)

    def _reap(self) -> None:
        """See which processes have ended."""
        for child in self._children:
            if not child.pid:
                continue
            pid, code = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(code))

    def _ended(self, child: _Running, code: int) -> None:
        if child.channel is not None:
            child.channel.close()
        child.pid, child.channel, child.ready = 0, None, False
        if self._stopping is not None:
            return
        if not self._was_ready:
            # What keeps one from its start is for the operator to mend.
            self.stop(code if code > 0 else 1)
        elif child.number == FIRST and code == 0:
            # It was asked to stop, over the admin socket.
            self.stop(0)
        else:
            why = f"signal {-code}" if code < 0 else f"status {code}"
            _say(f"process {child.number} ended ({why}); it is started anew in {child.delay:g} s")
            child.due = time.monotonic() + child.delay
            child.delay = min(child.delay * 2, LONGEST_DELAY)
            self.manager.tell(self._describe())

    def _judge(self) -> None:
        """Kill processes that hang, and tell the service manager that this one does not."""
        now = time.monotonic()
        if self._stopping is not None:
            if now > self._stopping:
                for child in self._children:
                    if child.pid:
                        _say(f"process {child.number} has not stopped within {STOP_SECONDS:g} s, and is killed")
                self._signal(signal.SIGKILL)
            return
        limit = self.manager.watchdog
        if limit is None:
            return
        for child in self._children:
            if child.pid and child.ready and now - child.heard > limit:
                _say(f"process {child.number} gave no sign of life for {limit:g} s, and is killed")
                os.kill(child.pid, signal.SIGKILL)
        self.manager.alive()

    def stop(self, status: int) -> None:
        """End all processes. ``status``: the exit status."""
        if self._stopping is None:
            self._status = status
            self._stopping = time.monotonic() + STOP_SECONDS
            self.manager.stopping()
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)


def _noted(number: int, frame: object) -> None:
    """Let the wake-up descriptor tell of a signal."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
