"""Direct TCP: each message follows a zero byte and its length in three bytes, big-endian. [MS-SMB2 2.1]

Small messages are copied from one receive buffer, which may receive several at once. A large message is received
directly into a pooled buffer of its own. Sends gather segments without copying them. Data that is still in a file goes
from the page cache to the socket. The data of a large message that somebody wants to store may stay in the socket until
all of it has arrived, and goes from there to the file.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from smb3server.net.arrived import ArrivedPayload, Pipe, bytes_waiting
from smbdirect import tcp_info
from smbdirect.codec import Buffer
from smbdirect.life import Life, change
from smbdirect.message_transport import (
    FileRange,
    InboundMessage,
    Limits,
    PayloadTaker,
    PooledBuffer,
    RdmaOperations,
    Tap,
    Traffic,
    TransportKind,
)
from smbdirect.tapping import Tapped
from smbdirect.transport.pool import BufferPool
from smbdirect.unauthenticated import Allowance

log = logging.getLogger(__name__)

MAX_MESSAGE = 0xFFFFFF
"""Longest message in bytes: the length field has three bytes."""
RECEIVE_BUFFER = 65536
INITIAL_BUFFER = 8192
"""Bytes of a trusted peer's receive buffer until a read fills it: most of thousands of clients send little."""
FIRST_BUFFER = 2048
"""Bytes of an unauthenticated peer's first receive buffer. It grows with received data, not with announced lengths."""
PEER_TIMEOUT = 180.0
"""Seconds for which a peer may acknowledge neither data nor keepalive probes: a network may fail for a minute or two. A
client that lost its network sends nothing, and only probes detect that."""
LARGE_MESSAGE = 16384
"""A message of at least this many bytes is received into a buffer of its own."""
PAYLOAD_FROM = 131072
"""Bytes of a message from which moving its data out of the socket costs less than receiving it. More than
``RECEIVE_BUFFER``, so that some of the data is in the socket in any case."""
PAYLOAD_TO = (2 << 20) + 4096
"""Bytes of a message up to which it can wait in the socket. Linux lets half of the largest receive buffer wait, which
is 3 MiB if net.ipv4.tcp_rmem has not been changed."""
MAX_WOKEN_EARLY = 8
"""How many messages in a row may find no room in the socket before none waits there again on this connection."""
MAX_SEGMENTS = 512
"""Most segments per sendmsg; IOV_MAX is 1024."""
MAX_FILES = 64
"""Most file ranges in the queue of a connection. Each may be all that keeps a closed file's descriptor open."""
HIGH_WATER = 16 << 20
"""Reading stops when more bytes than this are unsent, until fewer than half of them are."""
HIGH_WATER_UNAUTHENTICATED = 16384
READS_PER_TURN = 4
"""Most receive calls before other connections get their turn."""
MESSAGES_PER_TURN = 64
"""Most short messages that are delivered before other connections get their turn. A receive buffer has room for
hundreds, and answering them takes milliseconds."""
_JOINED = 256
"""A first segment of at most this many bytes is sent in one piece with the length before it: a copy costs less than a
further buffer in the system call."""
_LENGTH = struct.Struct(">I")
# Looking up the member of an enumeration takes longer than comparing it, and these are compared for each message.
_OPEN, _CLOSING, _DEAD = Life.OPEN, Life.CLOSING, Life.DEAD

OnMessage = Callable[[InboundMessage], None]


class _Small:
    """One message in memory of its own, which need not be given back."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def release(self) -> None:
        """Do nothing: the memory is freed with the last view."""


def tune(sock: socket.socket) -> None:
    """Set the options of a connection's socket, or of a listening one: the sockets that it accepts inherit them
    (Linux)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp_info.set_peer_timeout(sock, PEER_TIMEOUT)


class TcpTransport:
    """One direct-TCP connection. Implements ``smbdirect.message_transport.MessageTransport``."""

    kind = TransportKind.TCP
    fabric = "tcp"
    rdma: RdmaOperations | None = None
    max_outbound_message_size = MAX_MESSAGE

    def __init__(
        self,
        sock: socket.socket,
        pool: BufferPool,
        max_message_size: int,
        tuned: bool = False,
        pipe: Pipe | None = None,
    ) -> None:
        """Take over ``sock``. ``max_message_size`` applies until ``trust``, in bytes. ``tuned`` means that the
        listening socket was prepared with ``tune``. Without ``pipe`` every message is received into memory."""
        if not tuned:
            sock.setblocking(False)
            tune(sock)
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        # Invariant: at most MAX_MESSAGE.
        self.max_message_size = min(max_message_size, MAX_MESSAGE)
        self._trusted = False
        self._high_water = HIGH_WATER_UNAUTHENTICATED
        self.peer_address: tuple[str, int] = _address(sock.getpeername())
        self.local_address: tuple[str, int] = _address(sock.getsockname())
        self.pending_send_bytes = 0
        self._life = Life.OPENING
        """Open after ``start``."""
        self._error: BaseException | None = None
        """Why the connection ended; None means a clean end."""
        self._on_message: OnMessage = _release
        self._on_closed: Callable[[BaseException | None], None] | None = None
        # The receive side. Invariant: the bytes that were received but not delivered are _receive_view[_start:_end] or
        # the first _large_filled bytes of _large; one of the two is empty.
        self._bytes_received = 0
        self._retransmissions: int | None = None
        """Of the whole connection, once it has ended."""
        self._receive_view = memoryview(bytearray())
        self._start = 0
        self._end = 0
        self._filled = False
        """Whether a read has filled the initial buffer: the next buffer has full size."""
        self._allowance = Allowance(pool.unauthenticated)
        self._large: PooledBuffer | None = None
        self._large_filled = 0
        self._pipe = pipe
        self._taker: PayloadTaker | None = None
        """Is offered messages whose data is still in the socket. None: nobody is."""
        self._offered: PayloadTaker | None = None
        """The taker while there is a tap, which wants to see all data."""
        self._tapped: Tapped[InboundMessage] | None = None
        self._awaiting = False
        """Whether the first message in ``_receive_view`` waits until its data has arrived in the socket. Invariant: if
        so, nothing is received, and the socket becomes readable when all of the data is there, or else when no more of
        it will come."""
        self._woken_early = 0
        """How often the socket became readable before all of the data was there, since the last time that it was."""
        self._head_only = False
        """Whether to receive no more than the next message's head: its data would have to be copied."""
        self._paused = False
        """Set by ``pause_reading``."""
        self._throttled = False
        """Whether too much is unsent. Invariant: if set, ``pending_send_bytes`` was above the high-water mark, and has
        not been below half of it since."""
        self._reading = False
        """Whether the loop watches the socket for data. Invariant: True if and only if open and neither paused nor
        throttled."""
        self._left = 0
        """How many short messages may still be delivered in this turn."""
        self._has_turn = False
        """Whether ``_next_turn`` will be called soon. Invariant: if not, and the socket is watched for data, all
        complete messages have been delivered, except during a turn."""
        # The send side. Invariant: _queue and the ranges and memory of _files, in their order, have the bytes from
        # _sent_position to _queued_position of the stream. These are pending_send_bytes.
        self._queue: deque[Buffer] = deque()
        self._files: deque[tuple[FileRange, deque[Buffer]]] = deque()
        """Data that is still in a file, each with the memory that follows it."""
        self._last = self._queue
        """Takes the memory that is sent next: ``_queue``, or the memory behind the last range of ``_files``."""
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        """(stream position of a message's end, its on_sent), for messages that have one."""
        self._queued_position = 0
        self._sent_position = 0
        self._writing = False
        """Whether the loop watches for room in the socket. Invariant: if so, something is unsent."""
        self._corked = False
        """Whether ``_readable`` is on the stack: it flushes at its end, so that answers to a batch of requests need one
        call."""
        self._at_end: Callable[[], None] | None = None
        """See ``at_end_of_turn``. Invariant: None unless ``_corked``."""

    @property
    def counters(self) -> dict[str, int]:
        """A snapshot: bytes on the wire (including framing) and retransmitted segments."""
        return {
            "bytes_received": self._bytes_received,
            "bytes_sent": self._sent_position,
            "retransmissions": (
                tcp_info.retransmissions(self._socket) if self._retransmissions is None else self._retransmissions
            ),
        }

    @property
    def traffic(self) -> Traffic:
        """See ``MessageTransport``."""
        counters = self.counters
        return Traffic(
            inline_bytes_received=self._bytes_received,
            inline_bytes_sent=self._sent_position,
            retransmissions=counters["retransmissions"],
            provider=counters,
        )

    @property
    def limits(self) -> Limits:
        """See ``MessageTransport``."""
        return Limits(max_message_received=self.max_message_size)

    # Start and end

    def start(self, on_message: OnMessage, on_closed: Callable[[BaseException | None], None]) -> None:
        if self._life is Life.OPENING:
            self._life = change(self._life, Life.OPEN)
        elif self._life is Life.DEAD and self._on_closed is None:
            # It ended before there was a callback to notify.
            self._loop.call_soon(self._report_end)
        self._on_message = on_message
        self._on_closed = on_closed
        self._update_reading()

    def trust(self, max_message_size: int) -> None:
        """See ``MessageTransport``. A trusted peer also gets large buffers, and may leave more answers unread."""
        self.max_message_size = min(max_message_size, MAX_MESSAGE)
        self._trusted = True
        self._high_water = HIGH_WATER
        self._allowance.give_back()

    def close(self, reason: str = "") -> None:
        if self._life >= _CLOSING:
            return
        self._life = change(self._life, Life.CLOSING)
        self._update_reading()
        if not self.pending_send_bytes:
            self._finish(None)

    def abort(self, reason: str = "") -> None:
        self._finish(None if not reason else ConnectionAbortedError(reason))

    def _finish(self, error: BaseException | None) -> None:
        if self._life >= _DEAD:
            return
        self._end_turn()
        self._life = change(self._life, Life.DEAD)
        self._error = error
        self._update_reading()
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        self._retransmissions = tcp_info.retransmissions(self._socket)
        self._socket.close()
        self._allowance.give_back()
        self._queue.clear()
        self._files.clear()
        self._last = self._queue
        self.pending_send_bytes = 0
        marks, self._marks = self._marks, deque()
        for _, on_sent in marks:
            on_sent()
        if self._large is not None:
            self._large.release()
            self._large = None
        if self._on_closed is not None:
            self._loop.call_soon(self._report_end)

    def _report_end(self) -> None:
        self._life = change(self._life, Life.ENDED)
        if self._on_closed is not None:
            self._on_closed(self._error)

    # Receiving

    def pause_reading(self) -> None:
        self._paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._update_reading()
        if self._end > self._start and not self._awaiting:
            self._ask_for_turn()

    def _update_reading(self) -> None:
        wanted = self._life is _OPEN and not self._paused and not self._throttled
        if wanted and not self._reading:
            self._loop.add_reader(self._fd, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._fd)
        self._reading = wanted

    def _ask_for_turn(self) -> None:
        """Go on with the received messages after other connections have had their turn."""
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._has_turn = False
        if self._reading:
            self._readable()

    def _readable(self) -> None:
        """Deliver messages, first those that were received before, and send the answers."""
        if self._has_turn:
            return
        self._corked = True
        self._left = MESSAGES_PER_TURN
        sent = self._sent_position
        try:
            if self._end - self._start >= 4:
                self._deliver_buffered()
            for _ in range(READS_PER_TURN):
                if not self._reading or self._has_turn or not self._receive():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._finish(error)
            return
        finally:
            self._corked = False
            if self._at_end is not None:
                self._end_turn()
        self._flush()
        if self._sent_position == sent and self._reading and not self._has_turn:
            # Nothing was sent that would have met an error behind what was received.
            try:
                tcp_info.raise_error(self._socket)
            except OSError as error:
                self._finish(error)

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """See ``MessageTransport``."""
        if not self._corked or self._end == self._start:
            return False
        self._at_end = callback
        return True

    def _end_turn(self) -> None:
        callback, self._at_end = self._at_end, None
        if callback is not None:
            callback()

    def _receive(self) -> bool:
        """Receive once, and deliver the complete messages. Return False if another call would only block."""
        if self._awaiting:
            return False
        large = self._large
        if large is not None:
            view = large.view
            count = self._socket.recv_into(view[self._large_filled :])
            if not count:
                self._finish(ConnectionResetError("closed in the middle of a message"))
                return False
            self._bytes_received += count
            self._large_filled += count
            if self._large_filled == len(view):
                self._large = None
                self._on_message(large)
                return True
            return False
        if self._end == len(self._receive_view):
            self._compact_or_grow()
        room = self._receive_view[self._end :]
        head_only, self._head_only = self._head_only, False
        if head_only and self._taker is not None:
            room = room[: 4 + self._taker.head_size]
        count = self._socket.recv_into(room)
        if not count:
            partial = self._end > self._start
            self._finish(ConnectionResetError("closed in the middle of a message") if partial else None)
            return False
        self._bytes_received += count
        self._end += count
        full = count == len(room)
        if full and not head_only and not self._filled and self._trusted:
            # This peer sends more than fits: allocate the full buffer from now on.
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

    def _evicted(self) -> None:
        """Abort the connection: the memory of its unfinished message is needed for other peers, and its source holds
        most."""
        self.abort("unfinished message of an unauthenticated peer")

    def _resize(self) -> None:
        """Allocate a receive buffer with room, and copy the unparsed rest to it. Raise ``OSError`` if unauthenticated
        peers hold too much memory."""
        if self._trusted:
            size = RECEIVE_BUFFER if self._filled or self._end - self._start >= INITIAL_BUFFER else INITIAL_BUFFER
        else:
            size = min(max(FIRST_BUFFER, 2 * len(self._receive_view)), self.max_message_size + 4)
            if not self._allowance.take(self.peer_address[0], size, self._evicted):
                raise OSError(errno.ENOBUFS, "no memory for more from unauthenticated peers")
        rest = self._receive_view[self._start : self._end]
        buffer = bytearray(max(size, len(rest)))
        buffer[: len(rest)] = rest
        self._receive_view = memoryview(buffer)
        self._start, self._end = 0, len(rest)

    def _deliver_buffered(self) -> None:
        """Deliver the complete messages in the receive buffer, as many as this turn may."""
        view, start, end = self._receive_view, self._start, self._end
        while end - start >= 4 and self._reading:
            (length,) = _LENGTH.unpack_from(view, start)
            if length > self.max_message_size:
                what = "not a direct-TCP message" if view[start] else f"message of {length} bytes"
                self._finish(ConnectionAbortedError(what))
                return
            begin, follows = start + 4, start + 4 + length
            if follows <= end:
                if not self._left:
                    self._ask_for_turn()
                    return
                self._left -= 1
                self._start = start = follows
                # A copy: a request that waits for a long time keeps only its own bytes, not the receive buffer.
                self._on_message(_Small(memoryview(bytearray(view[begin:follows]))))
            elif self._trusted and length >= LARGE_MESSAGE:
                if PAYLOAD_FROM <= length <= PAYLOAD_TO and self._offer(begin, end, length):
                    return
                large = self._pool.acquire(length)
                here = end - begin
                large.view[:here] = view[begin:end]
                self._large, self._large_filled = large, here
                self._start = self._end = 0
                return
            else:
                break
        if start == end:
            self._start = self._end = 0
            if len(view) < INITIAL_BUFFER and self._trusted:
                self._resize()

    def offer_payloads(self, taker: PayloadTaker) -> None:
        if self._pipe is not None:
            self._taker = self._offered = taker

    def tap(self, tap: Tap | None) -> None:
        """See ``MessageTransport``."""
        if self._tapped is not None:
            self._on_message, self._tapped = self._tapped.deliver, None
            del self.__dict__["send"]
        self._taker = self._offered if tap is None else None
        if tap is None or self._life >= _DEAD:
            return
        if self._awaiting:
            # Its data is received into memory after all.
            self._wait_for(1)
        self._tapped = Tapped(tap, self._on_message, self.send)
        self._on_message = self._tapped.on_message
        # The instance's attribute hides the method.
        self.__dict__["send"] = self._tapped.send

    def _offer(self, begin: int, end: int, length: int) -> bool:
        """Offer a message whose data has arrived to the taker, or wait until it has. Return False if the message has to
        be received into memory.

        The message is executed at one moment, when it is complete. So a client that is slow, or dies in the middle, has
        changed nothing."""
        taker, pipe, view = self._taker, self._pipe, self._receive_view
        if taker is None or pipe is None:
            return False
        head_end = begin + taker.head_size
        if head_end > end or not taker.wants_payload(view[begin:head_end], length):
            return False
        unread = begin + length - end
        if bytes_waiting(self._fd) < unread:
            if not self._awaiting:
                self._wait_for(unread)
                return True
            # The peer sends no more, or the kernel has no room for it.
            self._wait_for(1)
            self._woken_early += 1
            if self._woken_early == MAX_WOKEN_EARLY:
                self._taker = self._offered = None
            return False
        if self._awaiting:
            self._wait_for(1)
        self._woken_early = 0
        payload = ArrivedPayload(view[head_end:end], self._fd, unread, pipe)
        if not taker.take_payload(_Small(memoryview(bytearray(view[begin:head_end]))), payload):
            return False
        self._start = self._end = 0
        self._bytes_received += unread
        self._head_only = True
        if self._life < _DEAD:
            try:
                payload.discard()
            except OSError as error:
                self._finish(error)
        return True

    def _wait_for(self, count: int) -> None:
        """Have the socket become readable only when it has ``count`` bytes."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        self._awaiting = count > 1

    # Sending

    def is_stalled(self) -> bool:
        return tcp_info.is_stalled(self._socket)

    def set_peer_timeout(self, seconds: float | None) -> None:
        if self._life < _DEAD:
            tcp_info.set_peer_timeout(self._socket, PEER_TIMEOUT if seconds is None else seconds)

    def acquire(self, size: int) -> PooledBuffer:
        return self._pool.acquire(size)

    @property
    def takes_file(self) -> bool:
        return len(self._files) < MAX_FILES

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        if self._life >= _CLOSING:
            if on_sent is not None:
                on_sent()
            return
        length = 0
        for segment in segments:
            length += len(segment)
        queue = self._last
        if data is not None:
            length += data.length
            self._last = deque()
            self._files.append((data, self._last))
        first = segments[0]
        if len(first) <= _JOINED:
            queue.append(b"".join((_LENGTH.pack(length), first)))
            queue.extend(segments[1:])
        else:
            queue.append(_LENGTH.pack(length))
            queue.extend(segments)
        length += 4
        self.pending_send_bytes += length
        self._queued_position += length
        if on_sent is not None:
            self._marks.append((self._queued_position, on_sent))
        if not self._corked and not self._writing:
            self._flush()
        if self.pending_send_bytes > self._high_water and not self._throttled:
            self._throttled = True
            self._update_reading()

    def _flush(self) -> None:
        """Send as much as the socket accepts."""
        while self.pending_send_bytes and self._life < _DEAD:
            queue = self._queue
            try:
                if self._files:
                    self._send_beside_files()
                    continue
                if len(queue) == 1:
                    count = self._socket.send(queue[0])
                else:
                    count = self._socket.sendmsg(
                        queue if len(queue) <= MAX_SEGMENTS else list(islice(queue, MAX_SEGMENTS))
                    )
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._finish(error)
                return
            self._sent(count)
        if self._life >= _DEAD:
            return
        unsent = self.pending_send_bytes > 0
        if unsent and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._flush)
        elif not unsent and self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._throttled and self.pending_send_bytes < self._high_water // 2:
            self._throttled = False
            self._update_reading()
            if self._end > self._start and not self._awaiting:
                self._ask_for_turn()
        if self._life is _CLOSING and not unsent:
            self._finish(None)

    def _send_beside_files(self) -> None:
        """Send the memory before the first file range, and the range. Raises ``OSError``."""
        queue = self._queue
        data, behind = self._files[0]
        if data.memory is not None and len(queue) < MAX_SEGMENTS:
            before = sum(map(len, queue))
            try:
                count = self._socket.sendmsg([*queue, data.memory])
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                # The file was cut off. sendfile(2) takes what is left of it.
                self._files[0] = data._replace(memory=None), behind
                return
            if count <= before:
                self._sent(count)
                return
            queue.clear()
            self.pending_send_bytes -= before
            self._sent_position += before
            self._range_sent(count - before)
            return
        if queue:
            # MSG_MORE: the kernel sends a header in the same segment as the data that follows it.
            self._sent(self._socket.sendmsg(list(islice(queue, MAX_SEGMENTS)), (), socket.MSG_MORE))
            return
        count = os.sendfile(self._fd, data.descriptor, data.offset, data.length)
        if count == 0:
            # The file was cut off after the header had promised the data. Samba, too, fills up with zeros.
            behind.appendleft(bytes(data.length))
        self._range_sent(count)

    def _range_sent(self, count: int) -> None:
        """Note that the socket accepted ``count`` bytes of the first file range; 0 if there will be no more of it."""
        data, behind = self._files[0]
        if count in (0, data.length):
            self._files.popleft()
            self._queue = behind
        else:
            self._files[0] = data.after(count), behind
        self.pending_send_bytes -= count
        self._sent_position += count
        self._report_sent()

    def _sent(self, count: int) -> None:
        """Note that the socket accepted ``count`` bytes of the queue."""
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
        if self._marks:
            self._report_sent()

    def _report_sent(self) -> None:
        """Call the ``on_sent`` of each message that the socket has accepted whole."""
        marks = self._marks
        while marks and marks[0][0] <= self._sent_position:
            _, on_sent = marks.popleft()
            on_sent()


def _release(message: InboundMessage) -> None:
    """Drop a message: the default callback before ``start``, when no message is received."""
    message.release()


def _address(name: tuple[object, ...]) -> tuple[str, int]:
    """Return host and port; an IPv4 client of a dual-stack listener appears as IPv4."""
    host, port = str(name[0]), int(str(name[1]))
    return host.removeprefix("::ffff:") if "." in host else host, port
