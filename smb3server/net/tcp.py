"""Direct TCP: the messages of ``framing``, over a socket. [MS-SMB2 2.1]

Data that is still in a file goes from the page cache to the socket. The data of a large message that somebody wants to
store may stay in the socket until all of it has arrived, and goes from there to the file.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter

from smb3server.net import framing
from smb3server.net.arrived import Payloads, Pipe
from smb3server.net.framing import LENGTH, MAX_MESSAGE, OnMessage
from smbdirect import tcp_info
from smbdirect.codec import Buffer
from smbdirect.life import Life, change
from smbdirect.message_transport import (
    FileRange,
    Limits,
    PayloadTaker,
    PooledBuffer,
    RdmaOperations,
    Traffic,
    TransportKind,
)
from smbdirect.rdma.pool import BufferPool
from smbdirect.tapping import showing

log = logging.getLogger(__name__)

PEER_TIMEOUT = 180.0
"""Seconds for which a peer may acknowledge neither data nor keepalive probes: a network may fail for a minute or two. A
client that lost its network sends nothing, and only probes detect that."""
MAX_SEGMENTS = 512
"""Most segments per sendmsg; IOV_MAX is 1024."""
MAX_FILES = 64
"""Most file ranges in the queue of a connection. Each may be all that keeps a closed file's descriptor open."""
HIGH_WATER = 16 << 20
"""Reading stops when more bytes than this are unsent, until fewer than half of them are."""
HIGH_WATER_UNAUTHENTICATED = 16384
READS_PER_TURN = 4
"""Most receive calls before other connections get their turn."""
_JOINED = 256
"""A first segment of at most this many bytes is sent in one piece with the length before it: a copy costs less than a
further buffer in the system call."""
_AT_ONCE = 16384
"""Bytes of a message up to which it is copied behind its length, to be sent at once."""
_FLUSH_FROM = 131072
"""Bytes of answers that do not wait for the end of the turn: the client can take them while others are made."""
_OF_STORAGE = frozenset((errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EREMOTEIO, errno.ENXIO))
"""Errors of sendfile(2) that are not the socket's."""
# Looking up the member of an enumeration takes longer than comparing it, and these are compared for each message.
_OPEN, _CLOSING, _DEAD = Life.OPEN, Life.CLOSING, Life.DEAD


def tune(sock: socket.socket) -> None:
    """Set the options of a connection's socket, or of a listening one: the sockets that it accepts inherit them
    (Linux)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp_info.set_peer_timeout(sock, PEER_TIMEOUT)


class Sender:
    """The outbound half of one stream. Sends gather segments without copying them.

    Invariant: ``queue``, and the ranges and memory of ``files`` in their order, have the bytes of the stream from
    ``bytes_sent`` on.
    """

    def __init__(self) -> None:
        self.queue: deque[Buffer] = deque()
        """The memory that is sent next, before the first of ``files``."""
        self.files: deque[tuple[FileRange, deque[Buffer]]] = deque()
        """Data that is still in a file, each with the memory that follows it."""
        self._last = self.queue
        """Takes the memory that is queued next: ``queue``, or the memory behind the last range of ``files``."""
        self.bytes_sent = 0
        self.marks: deque[tuple[int, Callable[[], None]]] = deque()
        """(stream position of a message's end, its on_sent), for messages that have one."""

    def add(
        self, segments: Sequence[Buffer], on_sent: Callable[[], None] | None, data: FileRange | None, unsent: int
    ) -> int:
        """Queue one message, which ends with ``data`` if that is not None, behind ``unsent`` bytes. Return how many
        bytes are unsent then."""
        length = 0
        for segment in segments:
            length += len(segment)
        queue = self._last
        if data is not None:
            length += data.length
            self._last = deque()
            self.files.append((data, self._last))
        first = segments[0]
        if len(first) <= _JOINED:
            queue.append(b"".join((LENGTH.pack(length), first)))
            queue.extend(segments[1:])
        else:
            queue.append(LENGTH.pack(length))
            queue.extend(segments)
        unsent += length + 4
        if on_sent is not None:
            self.marks.append((self.bytes_sent + unsent, on_sent))
        return unsent

    def sent(self, count: int, unsent: int) -> None:
        """Note that ``count`` bytes of ``queue`` were sent, and ``unsent`` bytes are left."""
        self.bytes_sent += count
        queue = self.queue
        if not unsent:
            queue.clear()
        else:
            while count:
                head = queue[0]
                if len(head) <= count:
                    count -= len(queue.popleft())
                else:
                    queue[0] = memoryview(head)[count:]
                    break
        if self.marks:
            self._report_sent()

    def range_sent(self, count: int, before: int = 0) -> None:
        """Note that ``count`` bytes of the first file range were sent, and the ``before`` bytes of ``queue``.

        If ``count`` is 0 the file was cut off after the header had promised the data. Samba, too, fills up with zeros.
        """
        data, behind = self.files[0]
        if before:
            self.queue.clear()
        if count == 0:
            behind.appendleft(bytes(data.length))
        if count in (0, data.length):
            self.files.popleft()
            self.queue = behind
        else:
            self.files[0] = data.after(count), behind
        self.bytes_sent += before + count
        self._report_sent()

    def unmap(self) -> None:
        """Have the first file range sent from its descriptor alone."""
        data, behind = self.files[0]
        self.files[0] = data._replace(memory=None), behind

    def _report_sent(self) -> None:
        """Call the ``on_sent`` of each message of which everything was sent."""
        marks = self.marks
        while marks and marks[0][0] <= self.bytes_sent:
            _, on_sent = marks.popleft()
            on_sent()

    def clear(self) -> None:
        """Drop what is queued, and call each ``on_sent``."""
        self.queue.clear()
        self.files.clear()
        self._last = self.queue
        marks, self.marks = self.marks, deque()
        for _, on_sent in marks:
            on_sent()


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
        self._high_water = HIGH_WATER_UNAUTHENTICATED
        self.peer_address: tuple[str, int] = _address(sock.getpeername())
        self.local_address: tuple[str, int] = _address(sock.getsockname())
        self._life = Life.OPENING
        """Open after ``start``."""
        self._error: BaseException | None = None
        """Why the connection ended; None means a clean end."""
        self._on_message: OnMessage = framing.release
        self._on_closed: Callable[[BaseException | None], None] | None = None
        self._retransmissions: int | None = None
        """Of the whole connection, once it has ended."""
        self._payloads = None if pipe is None else Payloads(sock, pipe)
        # Invariant: ``delivering`` is True if and only if the loop watches the socket for data. If so, and
        # ``_next_turn`` is not called soon, all complete messages have been delivered, except during a turn.
        self._receiver = framing.Receiver(
            self.peer_address[0],
            pool,
            min(max_message_size, MAX_MESSAGE),
            self._payloads,
            self._ask_for_turn,
            self.abort,
        )
        self._sender = Sender()
        self.pending_send_bytes = 0
        """What the sender has queued."""
        self.takes_file = True
        """See ``MessageTransport``."""
        self._paused = False
        """Set by ``pause_reading``."""
        self._throttled = False
        """Whether too much is unsent. Invariant: if set, ``pending_send_bytes`` was above the high-water mark, and has
        not been below half of it since."""
        self._has_turn = False
        """Whether ``_next_turn`` will be called soon."""
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
            "bytes_received": self._receiver.bytes_received,
            "bytes_sent": self._sender.bytes_sent,
            "retransmissions": (
                tcp_info.retransmissions(self._socket) if self._retransmissions is None else self._retransmissions
            ),
        }

    @property
    def traffic(self) -> Traffic:
        """See ``MessageTransport``."""
        counters = self.counters
        return Traffic(
            inline_bytes_received=self._receiver.bytes_received,
            inline_bytes_sent=self._sender.bytes_sent,
            retransmissions=counters["retransmissions"],
            provider=counters,
        )

    def _set_max_message_size(self, size: int) -> None:
        self._receiver.max_message_size = min(size, MAX_MESSAGE)

    # Read for each READ of a client: attrgetter is in C.
    max_message_size = property(attrgetter("_receiver.max_message_size"), _set_max_message_size)

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
        self._on_message = self._receiver.on_message = on_message
        self._on_closed = on_closed
        self._update_reading()

    def trust(self, max_message_size: int) -> None:
        """See ``MessageTransport``. A trusted peer also gets large buffers, and may leave more answers unread."""
        self._receiver.trust(min(max_message_size, MAX_MESSAGE))
        self._high_water = HIGH_WATER

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
        # Its traceback would keep every frame, and each message in them, for as long as the transport is known.
        self._error = error if error is None else error.with_traceback(None)
        self._update_reading()
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        self._retransmissions = tcp_info.retransmissions(self._socket)
        self._socket.close()
        self._receiver.close()
        self.pending_send_bytes = 0
        self._sender.clear()
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
        if self._receiver.can_go_on:
            self._ask_for_turn()

    def _update_reading(self) -> None:
        wanted = self._life is _OPEN and not self._paused and not self._throttled
        receiver = self._receiver
        if wanted and not receiver.delivering:
            self._loop.add_reader(self._fd, self._readable)
        elif receiver.delivering and not wanted:
            self._loop.remove_reader(self._fd)
        receiver.delivering = wanted

    def _ask_for_turn(self) -> None:
        """Go on with the received messages after other connections have had their turn."""
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._has_turn = False
        if self._receiver.delivering:
            self._readable()

    def _readable(self) -> None:
        """Deliver messages, first those that were received before, and send the answers."""
        if self._has_turn:
            return
        self._corked = True
        receiver = self._receiver
        receiver.left = framing.MESSAGES_PER_TURN
        sent = self._sender.bytes_sent
        try:
            if receiver.end:
                receiver.deliver()
            for _ in range(READS_PER_TURN):
                if self.pending_send_bytes and self._at_end is None and not self._writing:
                    # A client that waits for an answer sends nothing meanwhile.
                    self._flush()
                if not receiver.delivering or self._has_turn or not receiver.receive(self._socket.recv_into):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except EOFError:
            self._finish(None)
            return
        except OSError as error:
            self._finish(error)
            return
        finally:
            self._corked = False
            if self._at_end is not None:
                self._end_turn()
        if self.pending_send_bytes:
            self._flush()
        if self._sender.bytes_sent == sent and receiver.delivering and not self._has_turn:
            # Nothing was sent that would have met an error behind what was received (``tcp_info.raise_error``).
            number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                self._finish(OSError(number, os.strerror(number)))

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """See ``MessageTransport``."""
        if not self._corked or self._receiver.end == self._receiver.start:
            return False
        self._at_end = callback
        return True

    def _end_turn(self) -> None:
        callback, self._at_end = self._at_end, None
        if callback is not None:
            callback()

    def offer_payloads(self, taker: PayloadTaker) -> None:
        if self._payloads is not None:
            self._payloads.offer_to(taker)

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """See ``MessageTransport``."""
        self._receiver.on_message = self._on_message if see is None else showing(see, self._on_message)
        if self._payloads is not None:
            self._payloads.stopped = False
            if see is not None and self._life < _DEAD:
                self._payloads.stop()

    # Sending

    def is_stalled(self) -> bool:
        return tcp_info.is_stalled(self._socket)

    def set_peer_timeout(self, seconds: float | None) -> None:
        if self._life < _DEAD:
            tcp_info.set_peer_timeout(self._socket, PEER_TIMEOUT if seconds is None else seconds)

    def acquire(self, size: int) -> PooledBuffer:
        return self._pool.acquire(size)

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
        if (
            self._receiver.alone  # so no other answer can go with this one
            and not self.pending_send_bytes
            and on_sent is None
            and data is None
            and not self._at_end
            and len(segments) == 1
            and len(segments[0]) <= _AT_ONCE
        ):
            self._send_at_once(segments[0])
            return
        self.pending_send_bytes = self._sender.add(segments, on_sent, data, self.pending_send_bytes)
        if data is not None:
            self.takes_file = len(self._sender.files) < MAX_FILES
        waits = self._corked and (self.pending_send_bytes < _FLUSH_FROM or self._at_end is not None)
        if not waits and not self._writing:
            self._flush()
        if self.pending_send_bytes > self._high_water and not self._throttled:
            self._throttled = True
            self._update_reading()

    def _send_at_once(self, message: Buffer) -> None:
        """Send a message while nothing is unsent. What the socket does not accept is sent at the end of the turn."""
        framed = LENGTH.pack(len(message)) + message
        try:
            count = self._socket.send(framed)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._finish(error)
            return
        sender = self._sender
        sender.bytes_sent += count
        if count < len(framed):
            self.pending_send_bytes = len(framed) - count
            sender.queue.append(memoryview(framed)[count:])

    def _flush(self) -> None:
        """Send as much as the socket accepts."""
        sender = self._sender
        while self.pending_send_bytes and self._life < _DEAD:
            try:
                if sender.files:
                    self._send_beside_files()
                    continue
                queue = sender.queue
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
            left = self.pending_send_bytes = self.pending_send_bytes - count
            if left or sender.marks:
                sender.sent(count, left)
            else:
                # As ``sent`` does, without a call: all of nearly every answer is sent at once.
                sender.bytes_sent += count
                queue.clear()
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
            if self._receiver.can_go_on:
                self._ask_for_turn()
        if self._life is _CLOSING and not unsent:
            self._finish(None)

    def _send_beside_files(self) -> None:
        """Send the memory before the first file range, and the range. Raises ``OSError``."""
        sender = self._sender
        queue, (data, _) = sender.queue, sender.files[0]
        if data.memory is not None and len(queue) < MAX_SEGMENTS:
            before = sum(map(len, queue))
            try:
                count = self._socket.sendmsg([*queue, data.memory])
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                # The file was cut off. sendfile(2) takes what is left of it.
                sender.unmap()
                return
            self.pending_send_bytes -= count
            if count <= before:
                sender.sent(count, self.pending_send_bytes)
                return
            sender.range_sent(count - before, before)
        elif queue:
            # MSG_MORE: the kernel sends a header in the same segment as the data that follows it.
            count = self._socket.sendmsg(list(islice(queue, MAX_SEGMENTS)), (), socket.MSG_MORE)
            self.pending_send_bytes -= count
            sender.sent(count, self.pending_send_bytes)
            return
        else:
            try:
                count = os.sendfile(self._fd, data.descriptor, data.offset, data.length)
            except OSError as error:
                if error.errno in _OF_STORAGE and data.unreadable is not None:
                    data.unreadable()
                    log.warning(
                        "%s: the connection ends, as data that was promised cannot be read: %s; see the kernel's log",
                        self.peer_address[0], error.strerror,
                    )  # fmt: skip
                raise
            self.pending_send_bytes -= count
            sender.range_sent(count)
        self.takes_file = len(sender.files) < MAX_FILES


def _address(name: tuple[object, ...]) -> tuple[str, int]:
    """Return host and port; an IPv4 client of a dual-stack listener appears as IPv4."""
    host, port = str(name[0]), int(str(name[1]))
    return host.removeprefix("::ffff:") if "." in host else host, port
