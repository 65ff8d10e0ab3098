"""One connection over QUIC, for server and client. [MS-SMB2 2.1, RFC 9000]"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events

from smb3server.net import framing
from smb3server.net.framing import MAX_MESSAGE, OnMessage
from smb3server.net.quic.connection import STREAM, TRUSTED_WINDOW, Window, unacknowledged
from smb3server.net.tcp import HIGH_WATER, HIGH_WATER_UNAUTHENTICATED, Sender
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

if TYPE_CHECKING:
    from aioquic.quic.connection import QuicConnection
    from aioquic.quic.events import QuicEvent

SEND_AHEAD = 1 << 20
"""Bytes handed to the library that the peer has not acknowledged. What is beyond stays in the queue."""
_PIECE = 65536
KEEPALIVE = 25.0
"""Seconds between two signs of life to a peer with a session: ways through address translators close early."""
REFUSED = 1
"""The error code of a connection that an SMB server ends. SMB defines none, so it is only not zero."""
_OPEN, _CLOSING, _DEAD = Life.OPEN, Life.CLOSING, Life.DEAD


class QuicProtocol(QuicConnectionProtocol):
    """The connection as the library runs it. ``on_event`` sees what happens; ``after`` runs when all of a datagram or
    timer is done, before packets are sent."""

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic, stream_handler)
        self.on_event: Callable[[QuicEvent], None] = lambda event: None
        self.after: Callable[[], None] = lambda: None
        self._gone = False
        """Whether the socket is given up."""

    @property
    def quic(self) -> QuicConnection:
        """The connection of the library."""
        return self._quic

    def quic_event_received(self, event: QuicEvent) -> None:
        """See ``QuicConnectionProtocol``."""
        self.on_event(event)

    def transmit(self) -> None:
        """See ``QuicConnectionProtocol``."""
        if not self._gone:
            self.after()
            super().transmit()

    def give_up_socket(self) -> None:
        """Close the socket of a client, who has said goodbye. What the peer still sends is refused."""
        self._gone = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def transmit_soon(self) -> None:
        """Send what is to be sent in the next turn of the event loop."""
        self._transmit_soon()


class QuicTransport:
    """One SMB connection over QUIC. Implements ``smbdirect.message_transport.MessageTransport``."""

    kind = TransportKind.QUIC
    fabric = "quic"
    rdma: RdmaOperations | None = None
    takes_file = False
    max_outbound_message_size = MAX_MESSAGE

    def __init__(
        self,
        protocol: QuicProtocol,
        window: Window,
        pool: BufferPool,
        max_message_size: int,
        local_address: tuple[str, int],
        peer_address: tuple[str, int],
        own_socket: bool = False,
    ) -> None:
        """Take over a connection whose handshake is done. ``max_message_size`` applies until ``trust``, in bytes.

        ``own_socket``: the connection has a socket of its own, which is closed with it."""
        self._protocol = protocol
        self._own_socket = own_socket
        self._quic = protocol.quic
        self._window = window
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self.local_address = local_address
        self.peer_address = peer_address
        self._life = Life.OPENING
        self._error: BaseException | None = None
        self._on_message: OnMessage = framing.release
        self._on_closed: Callable[[BaseException | None], None] | None = None
        self._receiver = framing.Receiver(
            peer_address[0], pool, min(max_message_size, MAX_MESSAGE), None, self._ask_for_turn, self.abort
        )
        self._arrived: deque[memoryview] = deque()
        """Bytes of the stream that are not received yet. Their number is bounded by the window."""
        self._ended = False
        """Whether the peer sends no more."""
        self._sender = Sender()
        self.pending_send_bytes = 0
        self._high_water = HIGH_WATER_UNAUTHENTICATED
        self._paused = False
        self._throttled = False
        self._has_turn = False
        self._heard = time.monotonic()
        """When the last datagram arrived."""
        self._keepalive: asyncio.TimerHandle | None = None
        protocol.on_event = self._event
        protocol.after = self._advance

    # What it is

    @property
    def max_message_size(self) -> int:
        """See ``MessageTransport``."""
        return self._receiver.max_message_size

    @max_message_size.setter
    def max_message_size(self, size: int) -> None:
        self._receiver.max_message_size = min(size, MAX_MESSAGE)

    @property
    def counters(self) -> dict[str, int]:
        """A snapshot: bytes of the stream."""
        return {"bytes_received": self._receiver.bytes_received, "bytes_sent": self._sender.bytes_sent}

    @property
    def traffic(self) -> Traffic:
        """See ``MessageTransport``."""
        return Traffic(
            inline_bytes_received=self._receiver.bytes_received,
            inline_bytes_sent=self._sender.bytes_sent,
            provider=self.counters,
        )

    @property
    def limits(self) -> Limits:
        """See ``MessageTransport``."""
        return Limits(max_message_received=self.max_message_size)

    def is_stalled(self) -> bool:
        """See ``MessageTransport``."""
        return unacknowledged(self._quic) > 0 and time.monotonic() - self._heard > 1.0

    def set_peer_timeout(self, seconds: float | None) -> None:
        """Leave the time-out as it is: both ends agreed upon it in the handshake. [RFC 9000 10.1]"""

    def acquire(self, size: int) -> PooledBuffer:
        """See ``MessageTransport``."""
        return self._pool.acquire(size)

    def offer_payloads(self, taker: PayloadTaker) -> None:
        """Offer none: all data is decrypted in memory."""

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """Return False: messages come one at a time."""
        return False

    # Start and end

    def start(self, on_message: OnMessage, on_closed: Callable[[BaseException | None], None]) -> None:
        """See ``MessageTransport``."""
        self._on_message = self._receiver.on_message = on_message
        self._on_closed = on_closed
        if self._life is Life.OPENING:
            self._life = change(self._life, Life.OPEN)
            self._update_reading()
            self._ask_for_turn()
        elif self._life is _DEAD:
            self._loop.call_soon(self._report_end)

    def trust(self, max_message_size: int) -> None:
        """See ``MessageTransport``. A trusted peer gets a large window, and signs of life."""
        self._receiver.trust(min(max_message_size, MAX_MESSAGE))
        self._high_water = HIGH_WATER
        self._window.widen(TRUSTED_WINDOW)
        self._protocol.transmit_soon()
        if self._keepalive is None and self._life < _DEAD:
            self._keepalive = self._loop.call_later(KEEPALIVE, self._ping)

    def _ping(self) -> None:
        self._keepalive = self._loop.call_later(KEEPALIVE, self._ping)
        self._quic.send_ping(0)
        self._protocol.transmit_soon()

    def close(self, reason: str = "") -> None:
        """See ``MessageTransport``."""
        if self._life >= _CLOSING:
            return
        self._life = change(self._life, Life.CLOSING)
        self._update_reading()
        self._protocol.transmit_soon()

    def abort(self, reason: str = "") -> None:
        """See ``MessageTransport``."""
        self._finish(None if not reason else ConnectionAbortedError(reason), REFUSED if reason else 0)

    def _finish(self, error: BaseException | None, code: int = 0) -> None:
        if self._life >= _DEAD:
            return
        self._life = change(self._life, Life.DEAD)
        self._error = error if error is None else error.with_traceback(None)  # It would keep frames and messages.
        if self._keepalive is not None:
            self._keepalive.cancel()
        self._protocol.on_event, self._protocol.after = lambda event: None, lambda: None
        self._quic.close(error_code=code)
        self._protocol.transmit_soon()
        if self._own_socket:
            self._loop.call_soon(self._protocol.give_up_socket)
        self._receiver.delivering = False
        self._receiver.close()
        self._arrived.clear()
        self.pending_send_bytes = 0
        self._sender.clear()
        if self._on_closed is not None:
            self._loop.call_soon(self._report_end)

    def _report_end(self) -> None:
        self._life = change(self._life, Life.ENDED)
        if self._on_closed is not None:
            self._on_closed(self._error)

    # Receiving

    def _event(self, event: QuicEvent) -> None:
        self._heard = time.monotonic()
        if isinstance(event, events.StreamDataReceived):
            if event.stream_id != STREAM:
                self.abort("a second stream")
                return
            if event.data:
                self._arrived.append(memoryview(event.data))
            self._ended = self._ended or event.end_stream
            self._take()
        elif isinstance(event, events.ConnectionTerminated):
            self._finish(
                None if event.error_code == 0 else ConnectionResetError(event.reason_phrase or "ended by QUIC")
            )
        elif isinstance(event, events.StreamReset | events.StopSendingReceived) and event.stream_id == STREAM:
            self._finish(ConnectionResetError("the peer has given up its stream"))

    def _receive_into(self, room: memoryview) -> int:
        """Copy what has arrived. Raises ``BlockingIOError`` if there is nothing."""
        filled = 0
        while filled < len(room) and self._arrived:
            first = self._arrived.popleft()
            count = min(len(first), len(room) - filled)
            room[filled : filled + count] = first[:count]
            if count < len(first):
                self._arrived.appendleft(first[count:])
            filled += count
        if not filled and not self._ended:
            raise BlockingIOError
        return filled

    def _take(self) -> None:
        """Deliver the messages that have arrived, as many as one turn may."""
        receiver = self._receiver
        if self._has_turn or not receiver.delivering:
            return
        receiver.left = framing.MESSAGES_PER_TURN
        try:
            if receiver.end:
                receiver.deliver()
            while receiver.delivering and not self._has_turn and (self._arrived or self._ended):
                receiver.receive(self._receive_into)
        except BlockingIOError:
            return
        except EOFError:
            self._finish(None)
        except OSError as error:
            self._finish(error, REFUSED)

    def _ask_for_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._has_turn = False
        self._take()

    def pause_reading(self) -> None:
        """See ``MessageTransport``."""
        self._paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """See ``MessageTransport``."""
        self._paused = False
        self._update_reading()
        self._ask_for_turn()

    def _update_reading(self) -> None:
        wanted = self._life is _OPEN and not self._paused and not self._throttled
        self._receiver.delivering = wanted
        if wanted and not self._window.open:
            # The peer may be waiting for more of the window.
            self._protocol.transmit_soon()
        self._window.open = wanted

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """See ``MessageTransport``."""
        self._receiver.on_message = self._on_message if see is None else showing(see, self._on_message)

    # Sending

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        """See ``MessageTransport``."""
        if data is not None:
            raise ValueError("QUIC takes no files")
        if self._life >= _CLOSING:
            if on_sent is not None:
                on_sent()
            return
        self.pending_send_bytes = self._sender.add(segments, on_sent, None, self.pending_send_bytes)
        self._protocol.transmit_soon()
        if self.pending_send_bytes > self._high_water and not self._throttled:
            self._throttled = True
            self._update_reading()

    def _advance(self) -> None:
        """Hand to the library what it may have on the way. It copies, so that the memory is free."""
        sender = self._sender
        room = SEND_AHEAD - unacknowledged(self._quic)
        while room > 0 and self.pending_send_bytes and self._life < _DEAD:
            piece = b"".join(_first_of(sender.queue))[: min(room, _PIECE)]
            self._quic.send_stream_data(STREAM, piece)
            room -= len(piece)
            self.pending_send_bytes -= len(piece)
            sender.sent(len(piece), self.pending_send_bytes)
        if self._throttled and self.pending_send_bytes < self._high_water // 2:
            self._throttled = False
            self._update_reading()
            self._ask_for_turn()
        if self._life is _CLOSING and not self.pending_send_bytes and not unacknowledged(self._quic):
            self._finish(None)


def _first_of(queue: deque[Buffer]) -> list[memoryview]:
    """Return the first ``_PIECE`` bytes of a queue, or some more, or all."""
    found: list[memoryview] = []
    length = 0
    for buffer in queue:
        found.append(memoryview(buffer)[:_PIECE])
        length += len(buffer)
        if length >= _PIECE:
            break
    return found
