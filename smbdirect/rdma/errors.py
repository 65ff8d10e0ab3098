"""Errors of the RDMA API. ``ConnectionLost`` and ``ProviderError`` of ``smbdirect.errors`` belong to it, too."""

from __future__ import annotations

from smbdirect.errors import ConnectionLost, SmbDirectError


class RdmaError(SmbDirectError):
    """Base of the errors that this module adds."""


class AccessRefused(ConnectionLost):
    """The peer refused a token, a range or a right. That ends the connection: a fabric has no gentler answer."""


class OutOfRange(RdmaError, ValueError):
    """A transfer leaves the region of its handle, or the handle does not give the right. Nothing was sent."""


class MessageTooLong(RdmaError, ValueError):
    """A message is longer than the peer's receive buffers. Nothing was sent."""


class NotSupported(RdmaError):
    """The fabric cannot do this."""
