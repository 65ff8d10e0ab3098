"""Direct TCP (MS-SMB2 2.1): each message behind a zero byte and its length in three bytes, big-endian.

Small messages are cut out of one receive buffer, as many as a read brought; a large one is received straight into a
pooled buffer of its own. Sends gather segments without copying them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from smb3server.net.buffers import BufferPool
from smbdirect.codec import Buffer
from smbdirect.message_transport import InboundMessage, PooledBuffer, RdmaOperations
from smbdirect.transport import tcp_info
from smbdirect.transport.buffers import STRANGER_SIZE
from smbdirect.unauthenticated import Stranger

log = logging.getLogger(__name__)

MAX_MESSAGE = 0xFFFFFF
"""The length field has three bytes."""
RECEIVE_BUFFER = 65536
MODEST_BUFFER = 8192
"""Bytes of a trusted peer's receive buffer until a read fills it: thousands of clients may have little to say."""
FIRST_BUFFER = 2048
"""Bytes of the receive buffer of a peer not trusted with more; it grows with what arrives, not with announcements."""
UNTRUSTED = 1 << 17
"""A ``max_message_size`` up to this marks a peer that has not authenticated."""
PATIENCE = 180.0
"""Seconds that a peer may acknowledge neither data nor keepalive probes: a network may be away for a minute or two. A
client that lost its network says nothing, and may not be asked anything but by probes."""
LARGE_MESSAGE = 16384
"""Bytes from which a message is received into a buffer of its own."""
MAX_SEGMENTS = 512
"""Segments per sendmsg; IOV_MAX is 1024."""
HIGH_WATER = 16 << 20
"""Unsent bytes at which reading stops until half of them are gone."""
HIGH_WATER_UNTRUSTED = 16384
READS_PER_TURN = 4
"""Receive calls before other connections get their turn."""

OnMessage = Callable[[InboundMessage], None]


class _Small:
    """A message in memory of its own, which needs no giving back."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def release(self) -> None:
        """Nothing to give back: the memory goes with the last view."""


def tune(sock: socket.socket) -> None:
    """Options of a connection's socket, or of a listening one for all that it accepts: they inherit them (Linux)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp_info.limit_silence(sock, PATIENCE)


class TcpTransport:
    """See ``smbdirect.message_transport.MessageTransport``. Takes over ``sock``."""

    rdma: RdmaOperations | None = None
    max_outbound_message_size = MAX_MESSAGE

    def __init__(self, sock: socket.socket, pool: BufferPool, max_message_size: int, tuned: bool = False) -> None:
        """``tuned``: accepted by a socket that was prepared with ``tune``."""
        if not tuned:
            sock.setblocking(False)
            tune(sock)
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self.max_message_size = max_message_size
        self.peer_address: tuple[str, int] = _address(sock.getpeername())
        self.local_address: tuple[str, int] = _address(sock.getsockname())
        self.pending_send_bytes = 0
        self.bytes_received = 0
        self._on_message: OnMessage | None = None
        self._on_closed: Callable[[BaseException | None], None] | None = None
        self._receive_view = memoryview(bytearray())
        self._start = 0
        self._end = 0
        self._filled = False
        """A read filled the modest buffer."""
        self._allowance: Stranger | None = None
        """What it has of the memory for peers that are not trusted."""
        self._large: PooledBuffer | None = None
        self._large_filled = 0
        self._queue: deque[Buffer] = deque()
        self._marks: deque[tuple[int, Callable[[], None] | None]] = deque()
        """(stream position at a message's end, its on_sent)."""
        self._queued_position = 0
        self._sent_position = 0
        self._writing = False
        self._corked = False
        self._paused = False
        self._throttled = False
        self._reading = False
        self._delivering = False
        self._closing = False
        self._closed = False

    @property
    def counters(self) -> dict[str, int]:
        """A snapshot: bytes on the wire (framing included), segments sent again, buffers got from the system."""
        return {
            "bytes_received": self.bytes_received,
            "bytes_sent": self._sent_position,
            "retransmissions": tcp_info.retransmissions(self._socket),
        }

    @property
    def _high_water(self) -> int:
        return HIGH_WATER if self.max_message_size > UNTRUSTED else HIGH_WATER_UNTRUSTED

    # Life

    def start(self, on_message: OnMessage, on_closed: Callable[[BaseException | None], None]) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._update_reading()

    def close(self, reason: str = "") -> None:
        if self._closed or self._closing:
            return
        self._closing = True
        self._update_reading()
        if not self._queue:
            self._finish(None)

    def abort(self, reason: str = "") -> None:
        self._finish(None if not reason else ConnectionAbortedError(reason))

    def _finish(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._update_reading()
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        self._socket.close()
        self._give_back_allowance()
        self._queue.clear()
        self.pending_send_bytes = 0
        marks, self._marks = self._marks, deque()
        for _, on_sent in marks:
            if on_sent is not None:
                on_sent()
        if self._large is not None:
            self._large.release()
            self._large = None
        if self._on_closed is not None:
            self._loop.call_soon(self._on_closed, error)

    # Receiving

    def pause_reading(self) -> None:
        self._paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._update_reading()
        if self._end > self._start and not self._delivering:
            self._loop.call_soon(self._deliver_buffered)

    def _may_read(self) -> bool:
        return not (self._paused or self._throttled or self._closing or self._closed or self._on_message is None)

    def _update_reading(self) -> None:
        wanted = self._may_read()
        if wanted and not self._reading:
            self._loop.add_reader(self._fd, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._fd)
        self._reading = wanted

    def _readable(self) -> None:
        self._corked = True
        try:
            if self._end - self._start >= 4:
                # Reading was paused before everything was cut out.
                self._deliver_buffered()
            for _ in range(READS_PER_TURN):
                if not self._may_read() or not self._receive():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._finish(error)
            return
        finally:
            self._corked = False
        self._flush()

    def _receive(self) -> bool:
        """One receive call and what it brought; False when more would only block."""
        large = self._large
        if large is not None:
            view = large.view
            count = self._socket.recv_into(view[self._large_filled :])
            if not count:
                self._finish(ConnectionResetError("closed in the middle of a message"))
                return False
            self.bytes_received += count
            self._large_filled += count
            if self._large_filled == len(view):
                self._large = None
                self._deliver(large)
                return True
            return False
        if self._end == len(self._receive_view):
            self._compact_or_grow()
        room = self._receive_view[self._end :]
        count = self._socket.recv_into(room)
        if not count:
            partial = self._end > self._start
            self._finish(ConnectionResetError("closed in the middle of a message") if partial else None)
            return False
        self.bytes_received += count
        self._end += count
        full = count == len(room)
        if full and not self._filled and self.max_message_size > UNTRUSTED:
            # It has more to say than fits: now and from now on there is room for it.
            self._filled = True
            self._resize()
        self._deliver_buffered()
        return full

    def _compact_or_grow(self) -> None:
        rest = self._end - self._start
        if self._start and rest < len(self._receive_view):
            self._receive_view[:rest] = bytes(self._receive_view[self._start : self._end])
            self._start, self._end = 0, rest
        else:
            self._resize()

    def _allow(self, size: int) -> bool:
        """Whether a peer that is not trusted may have a receive buffer of ``size`` bytes."""
        if size <= STRANGER_SIZE:
            return True
        self._give_back_allowance()
        self._allowance = self._pool.strangers.enter(self.peer_address[0], self._evicted, size)
        return self._allowance is not None

    def _evicted(self) -> None:
        """Others need the memory more than the unfinished message of this peer, who has most of it."""
        self.abort("unfinished message of a peer that is not trusted")

    def _give_back_allowance(self) -> None:
        if self._allowance is not None:
            self._allowance.leave()
            self._allowance = None

    def _resize(self) -> None:
        """A receive buffer with room, made with the first byte that comes: who says nothing costs nothing."""
        if self.max_message_size > UNTRUSTED:
            size = RECEIVE_BUFFER if self._filled or self._end - self._start >= MODEST_BUFFER else MODEST_BUFFER
            self._give_back_allowance()
        else:
            size = min(max(FIRST_BUFFER, 2 * len(self._receive_view)), self.max_message_size + 4)
            if not self._allow(size):
                raise OSError(errno.ENOBUFS, "no memory for more from peers that are not trusted")
        rest = self._receive_view[self._start : self._end]
        buffer = bytearray(max(size, len(rest)))
        buffer[: len(rest)] = rest
        self._receive_view = memoryview(buffer)
        self._start, self._end = 0, len(rest)

    def _deliver_buffered(self) -> None:
        """Cut complete messages out of the receive buffer."""
        if self._delivering:
            return
        self._delivering = True
        try:
            self._parse()
        finally:
            self._delivering = False

    def _parse(self) -> None:
        view = self._receive_view
        trusted = self.max_message_size > UNTRUSTED
        while self._end - self._start >= 4 and self._may_read():
            start = self._start
            if view[start]:
                self._finish(ConnectionAbortedError("not a direct-TCP message"))
                return
            length = view[start + 1] << 16 | view[start + 2] << 8 | view[start + 3]
            if length > self.max_message_size:
                self._finish(ConnectionAbortedError(f"message of {length} bytes"))
                return
            here = self._end - start - 4
            if here >= length:
                # A copy, so that a request that waits for long keeps its own bytes only, not the receive buffer.
                body = bytearray(view[start + 4 : start + 4 + length])
                self._start = start + 4 + length
                self._deliver(_Small(memoryview(body)))
            elif trusted and length >= LARGE_MESSAGE:
                large = self._pool.get(length)
                large.view[:here] = view[start + 4 : self._end]
                self._large, self._large_filled = large, here
                self._start = self._end = 0
                return
            else:
                break
        if self._start == self._end:
            self._start = self._end = 0
            if len(view) < MODEST_BUFFER and self.max_message_size > UNTRUSTED:
                self._resize()

    def _deliver(self, message: InboundMessage) -> None:
        if self._on_message is None or self._closed:
            message.release()
            return
        self._on_message(message)

    # Sending

    def is_stalled(self) -> bool:
        return tcp_info.is_stalled(self._socket)

    def limit_silence(self, seconds: float | None) -> None:
        if not self._closed:
            tcp_info.limit_silence(self._socket, PATIENCE if seconds is None else seconds)

    def acquire(self, size: int) -> PooledBuffer:
        return self._pool.get(size)

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        if self._closed or self._closing:
            if on_sent is not None:
                on_sent()
            return
        length = sum(map(len, segments))
        queue = self._queue
        queue.append(length.to_bytes(4, "big"))
        queue.extend(segments)
        self.pending_send_bytes += length + 4
        self._queued_position += length + 4
        self._marks.append((self._queued_position, on_sent))
        if not self._corked and not self._writing:
            self._flush()
        if self.pending_send_bytes > self._high_water and not self._throttled:
            self._throttled = True
            self._update_reading()

    def _flush(self) -> None:
        """Send what the socket takes."""
        queue = self._queue
        while queue and not self._closed:
            try:
                count = self._socket.sendmsg(list(islice(queue, MAX_SEGMENTS)) if len(queue) > MAX_SEGMENTS else queue)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._finish(error)
                return
            self._sent(count)
        if self._closed:
            return
        if queue and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._flush)
        elif not queue and self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._throttled and self.pending_send_bytes < self._high_water // 2:
            self._throttled = False
            self._update_reading()
            if self._end > self._start:
                self._loop.call_soon(self._deliver_buffered)
        if self._closing and not queue:
            self._finish(None)

    def _sent(self, count: int) -> None:
        self.pending_send_bytes -= count
        self._sent_position += count
        if not self.pending_send_bytes:
            self._queue.clear()
        else:
            queue = self._queue
            while count:
                head = queue[0]
                if len(head) <= count:
                    count -= len(queue.popleft())
                else:
                    queue[0] = memoryview(head)[count:]
                    break
        marks = self._marks
        while marks and marks[0][0] <= self._sent_position:
            _, on_sent = marks.popleft()
            if on_sent is not None:
                on_sent()


def _address(name: tuple[object, ...]) -> tuple[str, int]:
    """Host and port; an IPv4 client of a dual-stack listener shows as IPv4."""
    host, port = str(name[0]), int(str(name[1]))
    return host.removeprefix("::ffff:") if "." in host else host, port
