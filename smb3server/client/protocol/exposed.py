"""Memory that a client exposes to its server for RDMA: registered once, used by many requests. [MS-SMBD 3.1.4.3]

A buffer is exposed for one direction and on one connection only. It stays registered as long as the connection lives. A
server that writes late can therefore corrupt only its own responses. Readers must copy the data out of the buffer.
"""

from __future__ import annotations

import mmap

from smbdirect.message_transport import ExposedMemory, RdmaOperations, RemoteBuffer

SMALLEST = 1 << 16
LARGEST = 1 << 20
"""Bytes of one buffer, and therefore of one READ or WRITE that uses it."""
KEPT = 16 << 20
"""Bytes of unused buffers that one connection keeps registered."""


class ExposedBuffer:
    """A buffer lent to one request."""

    __slots__ = ("memory", "room", "view", "writable")

    def __init__(self, memory: ExposedMemory, view: memoryview, writable: bool) -> None:
        self.memory = memory
        self.room = len(view)
        self.view = view
        self.writable = writable

    def descriptors(self, length: int) -> list[RemoteBuffer]:
        """Return descriptors of the first ``length`` bytes only, so that the server can use no more than the request
        needs.
        """
        found: list[RemoteBuffer] = []
        for descriptor in self.memory.descriptors:
            if length <= 0:
                break
            found.append(descriptor._replace(length=min(length, descriptor.length)))
            length -= descriptor.length
        return found


class ExposedPool:
    """The registered buffers of one connection."""

    def __init__(self, rdma: RdmaOperations) -> None:
        self.registrations = 0
        """Number of registrations so far; it stops growing when enough buffers exist."""
        self._rdma = rdma
        self._free: dict[tuple[bool, int], list[ExposedBuffer]] = {}
        # Invariant: the bytes of all buffers in ``_free``, until ``close``.
        self._kept = 0
        self._closed = False

    def take(self, size: int, *, writable: bool) -> ExposedBuffer:
        """Lend a buffer of at least ``size`` bytes (at most ``LARGEST``).

        The server may write to it if ``writable``, otherwise read from it. End the loan with ``give_back`` or ``drop``.
        Raises ``ProviderError`` if the memory cannot be registered.
        """
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get((writable, room))
        if free:
            self._kept -= room
            return free.pop()
        view = memoryview(mmap.mmap(-1, room))
        self.registrations += 1
        return ExposedBuffer(self._rdma.register(view, readable=not writable, writable=writable), view, writable)

    def give_back(self, buffer: ExposedBuffer) -> None:
        """Take back a buffer whose request was answered, so that another request can use it."""
        if self._closed or self._kept + buffer.room > KEPT:
            self.drop(buffer)
            return
        self._kept += buffer.room
        self._free.setdefault((buffer.writable, buffer.room), []).append(buffer)

    def drop(self, buffer: ExposedBuffer) -> None:
        """Revoke the server's access to a buffer whose request was not answered: the server may still be using it."""
        buffer.memory.deregister()

    def close(self) -> None:
        """Discard all buffers when the connection has ended. Idempotent."""
        self._closed = True
        free, self._free = self._free, {}
        for buffers in free.values():
            for buffer in buffers:
                buffer.memory.deregister()
