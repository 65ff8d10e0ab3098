"""Showing a connection's messages to a tap, at no cost for connections without one.

A traced connection uses a ``Tapped`` transport in place of its own. So the code that sends and receives needs no look
whether somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange, InboundMessage, MessageTransport, Tap

OnMessage = Callable[[InboundMessage], None]


def showing(see: Callable[[memoryview], None], deliver: OnMessage) -> OnMessage:
    """Return a function that shows a received message to ``see`` and delivers it."""

    def show(message: InboundMessage) -> None:
        see(message.view)
        deliver(message)

    return show


class Tapped:
    """A transport that shows its messages to a tap. What it does not do by itself the transport below it does."""

    def __init__(self, below: MessageTransport, tap: Tap) -> None:
        self.below = below
        self._tap = tap
        below.show_received(tap.received)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        """Show a message, and send it."""
        self._tap.sent(segments, data)
        self.below.send(segments, invalidate, on_sent, data)


def tapped(transport: MessageTransport, tap: Tap) -> MessageTransport:
    """Return a transport to use in place of ``transport``, which shows every message from now on to ``tap``. Call this
    after its ``start``."""
    return cast(MessageTransport, Tapped(transport, tap))


def untapped(transport: MessageTransport) -> MessageTransport:
    """Return the transport below a tapped one, whose messages nobody sees from now on; any other one as it is."""
    if not isinstance(transport, Tapped):
        return transport
    transport.below.show_received(None)
    return transport.below
