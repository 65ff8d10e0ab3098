"""The data of a message that has arrived in the socket and goes from there to a file, without being received into
memory. splice(2)

Such a message is executed at one moment, when it is complete. So a client that is slow, or dies in the middle, has
changed nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
import weakref
from operator import itemgetter

from smbdirect.message_transport import PayloadTaker

PAYLOAD_FROM = 131072
"""Bytes of a message from which moving its data out of the socket costs less than receiving it. More than a receive
buffer, so that some of the data is in the socket in any case."""
PAYLOAD_TO = (2 << 20) + 4096
"""Bytes of a message up to which it can wait in the socket. Linux lets half of the largest receive buffer wait, which
is 3 MiB if net.ipv4.tcp_rmem has not been changed."""
MAX_WOKEN_EARLY = 8
"""How many messages in a row may find no room in the socket before none waits there again on this connection."""
_F_SETPIPE_SZ = 1031
_PIPE_SIZE = 1 << 20
_PIECE = 65536
_SIZE = struct.Struct("=i")
_NO_SIZE = bytes(_SIZE.size)


def bytes_waiting(descriptor: int) -> int:
    """Return how many bytes a socket has that nobody has received."""
    return int(_SIZE.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, _NO_SIZE))[0])


class Pipe:
    """What splice(2) needs between a socket and a file. Any number of connections of one event loop share it.

    It has descriptors until ``close``, and again after a ``fill`` by a connection that outlives its listener.
    Invariant: it is empty before and after each call of ``move``."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._out, self._into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._descriptors = weakref.finalize(self, _close, self._out, self._into)
        with contextlib.suppress(PermissionError):  # A smaller pipe costs more calls.
            fcntl.fcntl(self._into, _F_SETPIPE_SZ, _PIPE_SIZE)

    def close(self) -> None:
        """Close the descriptors."""
        self._descriptors()

    def fill(self, source: int, length: int) -> int:
        """Take up to ``length`` bytes out of a socket. Return how many; 0 at its end.

        Raises ``BlockingIOError``, and ``OSError`` if the process has no descriptors left."""
        if not self._descriptors.alive:
            self._open()
        return os.splice(source, self._into, length, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)

    def empty(self, descriptor: int, offset: int, length: int) -> None:
        """Write the ``length`` bytes in the pipe to a file. If that raises ``OSError`` part of them may be written. The
        others are lost."""
        done = 0
        try:
            while done < length:
                done += self._write(descriptor, offset + done, length - done)
        except BaseException:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._out, _PIECE):
                    continue
            raise

    def _write(self, descriptor: int, offset: int, length: int) -> int:
        try:
            return os.splice(self._out, descriptor, length, offset_dst=offset, flags=os.SPLICE_F_MOVE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # The file system cannot splice.
        data = os.read(self._out, min(length, _PIECE))
        write_all(descriptor, memoryview(data), offset)
        return len(data)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write ``data`` to a file. Raises ``OSError``; part of it may be written then."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


class ArrivedPayload:
    """The data behind the head of a message. Implements ``message_transport.Payload``."""

    __slots__ = ("_begun", "_pipe", "_source", "length", "unread")

    def __init__(self, begun: memoryview, source: int, unread: int, pipe: Pipe) -> None:
        """``begun``: the first bytes, which have been received. The other ``unread`` bytes are in the socket
        ``source``."""
        self._begun = begun
        self._source = source
        self._pipe = pipe
        self.unread = unread
        self.length = len(begun) + unread

    def move_to(self, descriptor: int, offset: int) -> None:
        """See ``message_transport.Payload``."""
        write_all(descriptor, self._begun, offset)
        offset += len(self._begun)
        while self.unread:
            count = self._take(self.unread)
            self._pipe.empty(descriptor, offset, count)
            offset += count

    def _take(self, length: int) -> int:
        """Move bytes from the socket to the pipe. Return how many."""
        try:
            count = self._pipe.fill(self._source, length)
        except BlockingIOError:
            count = 0
        if not count:
            # The peer has sent urgent data, which the kernel takes out of the stream.
            raise ConnectionResetError(errno.ECONNRESET, "data that had arrived is gone")
        self.unread -= count
        return count

    def discard(self) -> None:
        """Drop what nobody has moved. Raises ``OSError``, ``BlockingIOError`` too, if the socket has less."""
        while self.unread:
            count = len(os.read(self._source, min(self.unread, _PIECE)))
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, "closed in the middle of a message")
            self.unread -= count


class Small(tuple[memoryview]):
    """One message in memory of its own, which need not be given back. It is made without a call of Python code."""

    __slots__ = ()
    view = property(itemgetter(0))

    def release(self) -> None:
        """Do nothing: the memory is freed with the last view."""


class Payloads:
    """Offers the messages of one connection to a taker while their data is still in the socket."""

    def __init__(self, sock: socket.socket, pipe: Pipe) -> None:
        self._socket = sock
        self._fd = sock.fileno()
        self._pipe = pipe
        self.taker: PayloadTaker | None = None
        """None: every message is received into memory."""
        self.head_size = 0
        """Bytes of a message in front of its data."""
        self.stopped = False
        """Whether no message is offered for the time being."""
        self.awaiting = False
        """Whether a message waits until its data has arrived. Invariant: if so, the socket becomes readable when all of
        the data is there, or else when no more of it will come."""
        self._woken_early = 0
        """How often the socket became readable before all of the data was there, since the last time that it was."""

    def offer_to(self, taker: PayloadTaker) -> None:
        """Offer messages to ``taker`` from now on."""
        self.taker, self.head_size = taker, taker.head_size

    def stop(self) -> None:
        """Offer no message until ``stopped`` is reset. One that waits is received into memory after all."""
        self.stopped = True
        if self.awaiting:
            self._wait_for(1)

    def offer(self, begun: memoryview, length: int) -> bool:
        """Offer a message of PAYLOAD_FROM to PAYLOAD_TO bytes whose data has arrived, or wait until it has.

        ``begun`` is the part of it that was received. Return whether it was taken. Otherwise it has to be received into
        memory, unless ``awaiting`` is set. Raises ``OSError`` if the data is lost.
        """
        taker, head_size = self.taker, self.head_size
        if taker is None or self.stopped:
            return False
        if head_size > len(begun) or not taker.wants_payload(begun[:head_size], length):
            return False
        unread = length - len(begun)
        if bytes_waiting(self._fd) < unread:
            if not self.awaiting:
                self._wait_for(unread)
                return False
            # The peer sends no more, or the kernel has no room for it.
            self._wait_for(1)
            self._woken_early += 1
            if self._woken_early == MAX_WOKEN_EARLY:
                self.taker = None
            return False
        if self.awaiting:
            self._wait_for(1)
        self._woken_early = 0
        payload = ArrivedPayload(begun[head_size:], self._fd, unread, self._pipe)
        if not taker.take_payload(Small((memoryview(bytearray(begun[:head_size])),)), payload):
            return False
        if self._socket.fileno() >= 0:
            payload.discard()
        return True

    def _wait_for(self, count: int) -> None:
        """Have the socket become readable only when it has ``count`` bytes."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        self.awaiting = count > 1
