"""What the core hands out: events of what was received, and Sends to be posted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from smbdirect.codec import Buffer
from smbdirect.message_transport import PooledBuffer


class Established(NamedTuple):
    """Negotiation succeeded: messages may be sent, and will be received."""


class NegotiationFailed(NamedTuple):
    """The acceptor refused with ``status``; its response is among the pending Sends, after which the connection is to
    be ended gracefully (3.1.5.3)."""

    status: int
    detail: str


class MessageReceived(NamedTuple):
    """One complete upper-layer message.

    ``buffer`` is None if ``view`` lies in the receive buffer that was passed in, else the pooled buffer that holds it.
    ``invalidated`` is the local token the peer invalidated with it, if any.
    """

    view: memoryview
    buffer: PooledBuffer | None
    invalidated: int | None


Event = Established | NegotiationFailed | MessageReceived


class OutgoingSend(NamedTuple):
    """One Send: ``segments`` start with our header. ``context`` and ``invalidate`` are those of the upper-layer
    message, on its last fragment only."""

    segments: Sequence[Buffer]
    invalidate: int | None
    context: object


Allocate = Callable[[int], PooledBuffer]
"""Where reassembly gets its buffers: exactly the asked number of bytes."""
