"""Many simulated clients in one process on one selector; orders arrive, and outcomes leave, over a pipe."""

from __future__ import annotations

import errno
import os
import random
import resource
import selectors
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tools.failover.client import Profile, Refused, SimulatedClient, Step, check, name_of

_OPENING_AT_ONCE = 64
_TICK = 0.02
_RECEIVE = 16384


@dataclass(slots=True)
class Options:
    """The options that a crowd starts with."""

    first: int
    count: int
    address: tuple[str, int]
    share: str
    folder: str
    user: str
    password: str
    pause: float
    """Seconds between a client's writes."""
    processor: int | None = None
    seed: int = 0
    last: Step = Step.IDLE
    """Clients stop once a response takes them beyond this step; IDLE means that they continue forever."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a crowd's clients."""

    resumed_at: list[float] = field(default_factory=list)
    """CLOCK_MONOTONIC seconds; 0 means that the client is not back."""
    acknowledged: int = 0
    errors: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    """Number of refusals by reason; each made a client reconnect."""
    processor_seconds: float = 0.0


class Crowd:
    """Clients of one process, and the loop that serves them."""

    def __init__(self, options: Options, control: Connection) -> None:
        self._options = options
        self._control = control
        self._address = options.address
        self._profile = Profile(options.share, options.user, options.password)
        numbers = range(options.first, options.first + options.count)
        self._clients = [SimulatedClient(number, self._profile) for number in numbers]
        self._selector = selectors.EpollSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._random = random.Random(options.seed)
        self._writing = False
        self._stopped = False
        self._to_open = list(reversed(self._clients))
        self._opening = 0
        self._refusals: Counter[str] = Counter()
        self._began = 0.0

    def run(self) -> None:
        next_tick = 0.0
        while not self._stopped:
            for key, events in self._selector.select(_TICK):
                if key.data is None:
                    self._obey()
                else:
                    self._event(key.data, events)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + _TICK
                self._tick(now)

    # Orders

    def _obey(self) -> None:
        order, value = self._control.recv()
        if order == "write":
            self._writing = True
            now = time.monotonic()
            for client in self._clients:
                client.due = now + self._random.random() * self._options.pause
        elif order == "address":
            self._address = value
            self._began = time.process_time()
        elif order == "back":
            self._control.send(sum(1 for client in self._clients if client.resumed_at))
        elif order == "stop":
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        used = time.process_time() - self._began
        outcome = Outcome(processor_seconds=used, refusals=self._refusals)
        for client in self._clients:
            outcome.resumed_at.append(client.resumed_at)
            outcome.acknowledged += client.acknowledged
            content = (Path(self._options.folder) / name_of(client.number)).read_bytes()
            error = check(content, client.number, client.acknowledged)
            if error:
                outcome.errors.append(error)
        self._control.send(outcome)

    # Time

    def _tick(self, now: float) -> None:
        while self._to_open and self._opening < _OPENING_AT_ONCE:
            self._opening += 1
            self._connect(self._to_open.pop(), now)
        for client in self._clients:
            if client.step is Step.IDLE:
                if self._writing and client.due <= now:
                    self._send(client, client.write())
            elif client.step is Step.AWAY and client.attempts and client.due <= now:
                self._connect(client, now)

    # Connections

    def _connect(self, client: SimulatedClient, now: float) -> None:
        client.attempts += 1
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        number = client.number
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Use many addresses: servers limit the connections of each.
            sock.bind((f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}", 0))
            result = sock.connect_ex(self._address)
        except OSError as error:
            sock.close()
            self._away(client, error.strerror or str(error))
            return
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            self._away(client, os.strerror(result))
            return
        client.attach(sock)
        self._selector.register(sock, selectors.EVENT_WRITE, client)

    def _away(self, client: SimulatedClient, reason: str) -> None:
        """Schedule a new connection: the first one immediately, later ones after growing random delays."""
        self._refusals[reason] += 1
        first, last = self._profile.delays
        delay = min(first * 2 ** min(client.attempts, 8), last) * (0.5 + self._random.random())
        client.attempts = max(client.attempts, 1)
        client.due = time.monotonic() + delay

    def _lost(self, client: SimulatedClient, reason: str) -> None:
        if client.sock is not None:
            self._selector.unregister(client.sock)
        client.lost()
        self._away(client, reason)

    def _event(self, client: SimulatedClient, events: int) -> None:
        sock = client.sock
        if sock is None:
            return
        if client.step is Step.CONNECT:
            failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                self._lost(client, os.strerror(failed))
                return
            self._selector.modify(sock, selectors.EVENT_READ, client)
            hello = client.connected()
            if client.step > self._options.last:
                self._opened()
            else:
                self._send(client, hello)
            return
        try:
            data = sock.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(client, error.strerror or str(error))
            return
        if not data:
            self._lost(client, "closed by the server")
            return
        before = client.step
        try:
            answer = client.received(data)
        except Refused as error:
            self._lost(client, str(error))
            return
        if client.step > self._options.last:
            self._opened()
        elif answer:
            self._send(client, answer)
        elif client.step is Step.IDLE and before is Step.LOCK:
            self._opened()
        elif client.step is Step.IDLE:
            client.due = time.monotonic() + self._options.pause

    def _opened(self) -> None:
        self._opening -= 1
        if not self._to_open and not self._opening:
            self._control.send("open")

    def _send(self, client: SimulatedClient, data: bytes) -> None:
        """Send a request. It fits the socket's buffer, because no other data waits in it."""
        sock = client.sock
        if sock is None:
            return
        try:
            if sock.send(data) != len(data):
                self._lost(client, "the socket's buffer is full")
        except OSError as error:
            self._lost(client, error.strerror or str(error))


def work(options: Options, control: Connection) -> None:
    """Run a process's crowd."""
    if options.processor is not None:
        os.sched_setaffinity(0, {options.processor})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Crowd(options, control).run()
