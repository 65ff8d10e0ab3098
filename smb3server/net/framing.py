"""Messages in a stream of bytes: each follows a zero byte and its length in three bytes, big-endian. [MS-SMB2 2.1]

No I/O: ``Receiver`` is handed the function that receives into memory, and delivers the messages.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from smb3server.net.arrived import PAYLOAD_FROM, PAYLOAD_TO, Payloads, Small
from smbdirect.message_transport import InboundMessage, PooledBuffer
from smbdirect.rdma.pool import BufferPool
from smbdirect.unauthenticated import Allowance

MAX_MESSAGE = 0xFFFFFF
"""Longest message in bytes: the length field has three bytes."""
RECEIVE_BUFFER = 65536
INITIAL_BUFFER = 8192
"""Bytes of a trusted peer's receive buffer until a read fills it: most of thousands of clients send little."""
FIRST_BUFFER = 2048
"""Bytes of an unauthenticated peer's first receive buffer. It grows with received data, not with announced lengths."""
LARGE_MESSAGE = 16384
"""A message of at least this many bytes is received into a buffer of its own."""
MESSAGES_PER_TURN = 64
"""Most short messages that are delivered before other connections get their turn. A receive buffer has room for
hundreds, and answering them takes milliseconds."""
LENGTH = struct.Struct(">I")
"""What stands before each message."""

OnMessage = Callable[[InboundMessage], None]


def release(message: InboundMessage) -> None:
    """Drop a message: nobody wants it."""
    message.release()


class Receiver:
    """The inbound half of one stream.

    Small messages are copied from one receive buffer, which may receive several at once. A large message is received
    directly into a pooled buffer of its own.
    """

    def __init__(
        self,
        peer: str,
        pool: BufferPool,
        max_message_size: int,
        payloads: Payloads | None,
        next_turn: Callable[[], None],
        abort: Callable[[str], None],
    ) -> None:
        """``next_turn`` is called if complete messages are left when ``MESSAGES_PER_TURN`` were delivered, ``abort``
        with the reason if the memory of an unauthenticated peer is needed for others. Without ``payloads`` every
        message is received into memory.
        """
        self.max_message_size = max_message_size
        self.on_message: OnMessage = release
        self.delivering = False
        """Whether messages may be delivered, and more be received."""
        self.left = 0
        """How many short messages may still be delivered in this turn."""
        self.bytes_received = 0
        self.alone = False
        """Whether the message that is being delivered is all that was received."""
        # Invariant: the bytes that were received but not delivered are _view[start:end] or the first _large_filled
        # bytes of _large; one of the two is empty.
        self._view = memoryview(bytearray())
        self.start = 0
        self.end = 0
        self._large: PooledBuffer | None = None
        self._large_filled = 0
        self._filled = False
        """Whether a read has filled the initial buffer: the next buffer has full size."""
        self._trusted = False
        self._peer = peer
        self._pool = pool
        self._allowance = Allowance(pool.unauthenticated)
        self._payloads = payloads
        self._head_only = False
        """Whether to receive no more than the next message's head: its data would have to be copied."""
        self._next_turn = next_turn
        self._abort = abort

    @property
    def can_go_on(self) -> bool:
        """Whether there are bytes that may be a message, for which nothing more need be received."""
        return self.end > self.start and not (self._payloads is not None and self._payloads.awaiting)

    def trust(self, max_message_size: int) -> None:
        """Give the peer large buffers, and accept messages of up to ``max_message_size`` bytes."""
        self.max_message_size = max_message_size
        self._trusted = True
        self._allowance.give_back()

    def close(self) -> None:
        """Give back all memory."""
        self._allowance.give_back()
        if self._large is not None:
            self._large.release()
            self._large = None

    def receive(self, receive_into: Callable[[memoryview], int]) -> bool:
        """Receive once, and deliver the complete messages. Return False if another call would find nothing.

        Raises ``EOFError`` at the stream's end, and ``OSError`` if the peer breaks a rule or ends within a message.
        """
        payloads, large = self._payloads, self._large
        if payloads is not None and payloads.awaiting:
            return False
        if large is not None:
            count = receive_into(large.view[self._large_filled :])
            if not count:
                raise ConnectionResetError("closed in the middle of a message")
            self.bytes_received += count
            self._large_filled += count
            if self._large_filled == len(large.view):
                self._large = None
                self.on_message(large)
                return True
            return False
        view, end = self._view, self.end
        if end == len(view):
            self._compact_or_grow()
            view, end = self._view, self.end
        room = view[end:] if end else view
        if self._head_only and payloads is not None:
            self._head_only = False
            room = room[: 4 + payloads.head_size]
        count = receive_into(room)
        if not count:
            if end > self.start:
                raise ConnectionResetError("closed in the middle of a message")
            raise EOFError
        self.bytes_received += count
        full = count == len(room)
        if not (end or full) and self.left and self.delivering:
            length = count - 4
            if LENGTH.unpack_from(view)[0] == length <= self.max_message_size and len(view) >= INITIAL_BUFFER:
                # As ``deliver`` does. It is what nearly every call finds of a client that waits for each answer.
                self.left -= 1
                self.alone = True
                try:
                    self.on_message(Small((memoryview(bytearray(view[4:count])),)))
                finally:
                    self.alone = False
                return False
        self.end = end + count
        if full and not self._filled and self._trusted and self.end == len(view):
            # This peer sends more than fits: allocate the full buffer from now on.
            self._filled = True
            self._resize()
        self.deliver()
        return full

    def _compact_or_grow(self) -> None:
        rest = self.end - self.start
        if self.start and rest < len(self._view):
            self._view[:rest] = bytes(self._view[self.start : self.end])
            self.start, self.end = 0, rest
        else:
            self._resize()

    def _evicted(self) -> None:
        """Abort the connection: the memory of its unfinished message is needed for other peers, and its source holds
        most."""
        self._abort("unfinished message of an unauthenticated peer")

    def _resize(self) -> None:
        """Allocate a receive buffer with room, and copy the unparsed rest to it. Raise ``OSError`` if unauthenticated
        peers hold too much memory."""
        if self._trusted:
            size = RECEIVE_BUFFER if self._filled or self.end - self.start >= INITIAL_BUFFER else INITIAL_BUFFER
        else:
            size = min(max(FIRST_BUFFER, 2 * len(self._view)), self.max_message_size + 4)
            if not self._allowance.take(self._peer, size, self._evicted):
                raise OSError(errno.ENOBUFS, "no memory for more from unauthenticated peers")
        rest = self._view[self.start : self.end]
        buffer = bytearray(max(size, len(rest)))
        buffer[: len(rest)] = rest
        self._view = memoryview(buffer)
        self.start, self.end = 0, len(rest)

    def deliver(self) -> None:
        """Deliver the complete messages in the receive buffer, as many as this turn may. Raises ``OSError`` if what
        follows is no message that may be sent."""
        view, start, end = self._view, self.start, self.end
        while end - start >= 4 and self.delivering:
            (length,) = LENGTH.unpack_from(view, start)
            if length > self.max_message_size:
                what = "not a direct-TCP message" if view[start] else f"message of {length} bytes"
                raise ConnectionAbortedError(what)
            begin = start + 4
            follows = begin + length
            if follows <= end:
                if not self.left:
                    self._next_turn()
                    return
                self.left -= 1
                self.start = start = follows
                # A copy: a request that waits for a long time keeps only its own bytes, not the receive buffer.
                self.on_message(Small((memoryview(bytearray(view[begin:follows])),)))
            elif self._trusted and length >= LARGE_MESSAGE:
                payloads, taken = self._payloads, False
                if payloads is not None and PAYLOAD_FROM <= length <= PAYLOAD_TO:
                    taken = payloads.offer(view[begin:end], length)
                    if payloads.awaiting:
                        return
                if taken:
                    self.bytes_received += follows - end
                    self._head_only = True
                else:
                    large = self._pool.acquire(length)
                    here = end - begin
                    large.view[:here] = view[begin:end]
                    self._large, self._large_filled = large, here
                self.start = self.end = 0
                return
            else:
                break
        if start == end:
            self.start = self.end = 0
            if len(view) < INITIAL_BUFFER and self._trusted:
                self._resize()
