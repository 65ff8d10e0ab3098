"""Reassembly of fragments into upper-layer messages. [MS-SMBD 3.1.5.8]"""

from __future__ import annotations

from smbdirect.core.messages import Allocate
from smbdirect.errors import ProtocolError
from smbdirect.message_transport import PooledBuffer

_RULE = "MS-SMBD 3.1.5.8 FragmentReassemblyRemaining"


def _refuse(size: int) -> PooledBuffer:
    """Raise ``ProtocolError``: the connection has ended."""
    raise ProtocolError("a fragment after the end", _RULE)


class Reassembler:
    """FragmentReassemblyBuffer and FragmentReassemblyRemaining of one connection.

    The buffer is allocated once, from the lengths in the first fragment, which the caller has checked.
    """

    __slots__ = ("_allocate", "_buffer", "_position", "active", "remaining")

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._buffer: PooledBuffer | None = None
        self._position = 0
        self.remaining = 0
        self.active = False
        """Whether a message has begun and not ended. Invariant: ``_buffer`` is its buffer if so, else None."""

    def append(self, data: memoryview, remaining_data_length: int) -> PooledBuffer | None:
        """Add one fragment. Return the message's buffer, which the caller then owns, if it is complete, else None.

        ``remaining_data_length`` is how many bytes of the message are still to come. Raises ``ProtocolError`` if the
        fragment does not continue the message; nothing has changed in that case.
        """
        buffer = self._buffer
        length = len(data)
        if buffer is None:
            buffer = self._allocate(length + remaining_data_length)
            self._buffer = buffer
            self.active = True
            self._position = 0
        elif length + remaining_data_length != self.remaining:
            raise ProtocolError(
                f"fragment of {length} bytes says {remaining_data_length} remain, expected {self.remaining - length}",
                _RULE,
            )
        end = self._position + length
        buffer.view[self._position : end] = data
        self._position = end
        self.remaining = remaining_data_length
        if remaining_data_length:
            return None
        self._buffer = None
        self.active = False
        return buffer

    def discard(self) -> None:
        """Release the buffer of an unfinished message and allocate no more: the connection ended."""
        # The allocating object refers to this one. Breaking the circle frees both without the garbage collector.
        self._allocate = _refuse
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None
            self.active = False
            self.remaining = 0
