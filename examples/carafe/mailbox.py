"""The data path: a mailbox is a region in the memory of the worker that reads it, and all others write into it.

A mailbox has two buffers. In one lie the messages that the worker reads in this superstep; into the other the workers
write those of the next one. A buffer has a part for each writer: its votes, and the message of each of its vertices
that has an edge into this partition, once, in the order of the vertices. So a part is one dense array at a known place:
one RDMA Write.

Behind the buffers lies one byte for each writer. It writes its superstep there after a fence: whoever sees the byte has
the messages. A byte is never torn, whatever the fabric. Invariant: the buffer that a worker writes is read by nobody.
It was read two supersteps ago, and every reader has sent its byte of the last one since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rstore
from numpy.typing import NDArray

from carafe.graph import Numbers
from carafe.programs import VOTES, Values

WORD = 8
PATIENCE = 1.0
"""Seconds of waiting for a worker after which the store is asked whether it is still there."""
SETTING_UP = 120.0
"""Seconds that all workers have until their mailboxes are there."""


class WorkerLost(Exception):
    """Another worker of this run is gone."""


class Mailbox:
    """The mailbox of one worker, and the ways to those of the others."""

    def __init__(
        self, store: rstore.Store, run: str, index: int, bounds: Numbers, needs: Numbers, kind: Any, host: str
    ) -> None:
        """Make the mailbox. ``needs`` has all vertices with edges into this partition, in order."""
        self._store, self._run, self._index, self._first = store, run, index, int(bounds[index])
        self._workers = workers = len(bounds) - 1
        self._superstep = 0
        starts = np.searchsorted(needs, bounds)
        words = VOTES * workers + len(needs)
        header = 2 + workers
        size = (header + len(needs) + 2 * words) * WORD + workers
        memory = store.lend(f"{run}-mailbox-{index}", size, host)
        numbers = np.frombuffer(memory, np.int64, header + len(needs))
        behind = len(numbers) * WORD
        self._buffers: list[Values] = [
            np.frombuffer(memory, kind, words, behind + number * words * WORD) for number in (0, 1)
        ]
        self._bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, workers, behind + 2 * words * WORD)
        self.slots = np.arange(len(needs)) + VOTES * (np.repeat(np.arange(workers), np.diff(starts)) + 1)
        """Where in a buffer the message of each of ``needs`` is."""
        self._votes = starts[:-1, None] + VOTES * np.arange(workers)[:, None] + np.arange(VOTES)
        numbers[1:header], numbers[header:] = starts, needs
        numbers[0] = 1  # now the others may read it

    def connect(self, kind: Any) -> None:
        """Learn from the others' mailboxes what they need of this worker, and where it goes."""
        self._regions: list[Any] = []
        self._send: list[Values] = []
        self._out: list[Values] = []
        self._places: list[tuple[int, int, int]] = []
        for worker in range(self._workers):
            region, starts = self._wait_for(worker)
            header, total = len(starts) + 1, int(starts[-1])
            begin, end = int(starts[self._index]), int(starts[self._index + 1])
            needs = np.empty(end - begin, np.int64)
            try:
                region.read_into(needs, (header + begin) * WORD)
            except (rstore.RegionGone, rstore.RegionLost) as error:
                raise WorkerLost(f"worker {worker} died before the first superstep") from error
            words = VOTES * self._workers + total
            first = header + total + VOTES * self._index + begin
            self._regions.append(region)
            self._send.append(needs - self._first)
            self._out.append(np.zeros(VOTES + len(needs), kind))
            self._places.append(
                (first * WORD, (first + words) * WORD, (header + total + 2 * words) * WORD + self._index)
            )

    def _wait_for(self, worker: int) -> tuple[Any, Numbers]:
        """Return the mailbox of a worker, once it is ready, and where in it the vertices of each worker begin."""
        deadline = time.monotonic() + SETTING_UP
        header = np.zeros(2 + self._workers, np.int64)
        seen = False
        while True:
            try:
                region = self._store[f"{self._run}-mailbox-{worker}"]
                seen = True
                region.read_into(header)
                if header[0]:
                    return region, header[1:]
            except (rstore.RegionGone, rstore.RegionLost) as error:
                if seen or isinstance(error, rstore.RegionLost):
                    raise WorkerLost(f"worker {worker} died before the first superstep") from error
            if time.monotonic() > deadline:
                raise WorkerLost(f"worker {worker} was not ready within {SETTING_UP:g} s")
            time.sleep(0.01)

    def exchange(self, messages: Values, votes: Sequence[float]) -> tuple[Values, Values]:
        """Write the messages of this superstep to all, and wait for theirs. Return the buffer with them, which is good
        until the next exchange but one, and the sums of the votes. Raise ``WorkerLost``."""
        number = self._superstep % 2
        for send, out in zip(self._send, self._out, strict=True):
            out[: len(votes)] = votes
            np.take(messages, send, out=out[VOTES:], mode="clip")
        buffer, own = self._buffers[number], self._out[self._index]
        begin = self._votes[self._index, 0]
        buffer[begin : begin + len(own)] = own
        self._write(lambda worker: [(self._out[worker], self._places[worker][number])])
        self._wait()
        return buffer, buffer[self._votes].sum(axis=0)

    def leave(self) -> None:
        """Wait until all have come here: then nobody writes into this mailbox any more."""
        try:
            self._write(lambda worker: [])
        except WorkerLost:
            # It has seen this worker's byte and has gone, before the fence behind the byte was answered.
            pass
        self._wait()

    def _write(self, what: Callable[[int], list[tuple[Any, int]]]) -> None:
        """Write to each other worker, and then the byte that says so."""
        self._superstep += 1
        mark = bytes([self._superstep % 256])
        others = [worker for worker in range(self._workers) if worker != self._index]
        if not others:
            return
        try:
            self._store.write_all(
                [(self._regions[worker], *part) for part in [*what(worker), (mark, self._places[worker][2])]]
                for worker in others
            )
        except (rstore.RegionGone, rstore.RegionLost) as error:
            self._look(others)
            raise WorkerLost(f"a worker left during superstep {self._superstep}: {error.args[0]}") from error

    def _wait(self) -> None:
        """Wait for the bytes of all others. A byte is that of the superstep before, of this one or, if its worker is
        faster, of the next."""
        before, pause, asked = (self._superstep - 1) % 256, 20e-6, time.monotonic()
        others = np.arange(self._workers) != self._index
        while (late := (self._bytes == before) & others).any():
            time.sleep(pause)
            pause = min(pause * 1.5, 1e-3)
            if time.monotonic() - asked > PATIENCE:
                self._look(np.flatnonzero(late).tolist())
                asked = time.monotonic()

    def _look(self, workers: Sequence[int]) -> None:
        """Raise ``WorkerLost`` if one of the workers is gone."""
        for worker in workers:
            try:
                self._store[f"{self._run}-mailbox-{worker}"]
            except (rstore.RegionGone, rstore.RegionLost) as error:
                raise WorkerLost(f"worker {worker} is gone in superstep {self._superstep}") from error
