"""Showing a connection's messages to a tap, at no cost for connections without one.

A tapped transport gets a ``send`` and an ``_on_message`` of its own, which call those that it had before. So the code
that sends and receives needs no look whether somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange, InboundMessage, Tap

M = TypeVar("M", bound=InboundMessage)
Send = Callable[[Sequence[Buffer], "int | None", "Callable[[], None] | None", "FileRange | None"], None]


class Tapped(Generic[M]):
    """The two functions of a tapped transport."""

    def __init__(self, tap: Tap, deliver: Callable[[M], None], send: Send) -> None:
        """``deliver`` and ``send``: what the transport would call otherwise."""
        self.tap = tap
        self.deliver = deliver
        self._send = send

    def on_message(self, message: M) -> None:
        """Show a received message, and deliver it."""
        self.tap.received(message.view)
        self.deliver(message)

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        """Show a message, and send it."""
        self.tap.sent(segments, data)
        self._send(segments, invalidate, on_sent, data)
