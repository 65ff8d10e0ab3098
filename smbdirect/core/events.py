"""The output of the core: events about received messages, and Sends to be posted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from smbdirect.codec import Buffer
from smbdirect.message_transport import PooledBuffer


class Established(NamedTuple):
    """Negotiation succeeded: messages may be sent and received."""


class NegotiationFailed(NamedTuple):
    """The acceptor refused with ``status``. Its response is among the pending Sends; end the connection gracefully once
    it is sent. [MS-SMBD 3.1.5.3]"""

    status: int
    detail: str


class MessageReceived(NamedTuple):
    """One complete upper-layer message.

    ``buffer`` is the pooled buffer that holds it, or None if ``view`` lies in the receive buffer that was passed in.
    ``invalidated`` is the local token that the peer invalidated with it, if any.
    """

    view: memoryview
    buffer: PooledBuffer | None
    invalidated: int | None


Event = Established | NegotiationFailed | MessageReceived


class OutgoingSend(NamedTuple):
    """One Send, whose ``segments`` start with our header. Only the last fragment of an upper-layer message has its
    ``context`` and ``invalidate``."""

    segments: Sequence[Buffer]
    invalidate: int | None
    context: object


Allocate = Callable[[int], PooledBuffer]
"""Returns a reassembly buffer of exactly the requested number of bytes."""
