"""Where the rest of a long tagged message will lie in the stream, as its first FPDU lets expect.

Nobody can know this: the peer may cut the next FPDU elsewhere, or send another message between two FPDUs. So each
payload is received into its place only after the header in front of it was compared: bytes that the peer does not write
must stay as they are.
"""

from __future__ import annotations

from crc32c import crc32c

from smbdirect.providers.iwarp.ddp import TAGGED_HEADER, TAGGED_HEADER_SIZE, TAGGED_WORDS
from smbdirect.providers.iwarp.frames import follow
from smbdirect.providers.iwarp.mpa import fpdu_size
from smbdirect.providers.iwarp.rdmap import Fault, TerminateError

_HEADER = TAGGED_HEADER.size
_CRC_SIZE = 4


class Layout:
    """Equally long FPDUs of one message, none of them the last, whose payloads lie in memory one after the other.

    ``buffers`` are for one of these FPDUs. Its trailer and the header of the next are received into memory of the
    layout. The header of the first FPDU was received and compared before.
    """

    __slots__ = (
        "_between", "_crc", "_end", "_filled", "_kind", "_memory", "_offset", "_payload", "_size", "_start", "buffers",
        "bytes_done", "continues", "fpdus", "left",
    )  # fmt: skip

    def __init__(
        self, memory: memoryview, start: int, end: int, header: tuple[int, int], payload: int, crc: bool
    ) -> None:
        """``memory[start:end]`` is what FPDUs other than the last may fill. ``header`` is the first FPDU's, as
        ``TaggedWords``, and ``payload`` the length of its payload. ``crc``: check the checksums."""
        self._memory = memory
        self._start = start
        self._end = end
        self._kind, self._offset = header
        self._payload = payload
        self._size = fpdu_size(TAGGED_HEADER_SIZE + payload)
        self._between = memoryview(bytearray(self._size - payload))
        """The trailer of an FPDU and the header of the next."""
        self._crc = crc
        self.fpdus = 0
        """FPDUs that are complete and right."""
        self.bytes_done = 0
        """Bytes of payload in them."""
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay out the next FPDU, which begins behind its header."""
        start, payload, between = self._start, self._payload, self._between
        self.continues = self._end - start >= 2 * payload
        """Whether another such FPDU is expected. Then its header is the end of ``buffers``."""
        if not self.continues:
            between = between[:-_HEADER]
        self.buffers = [self._memory[start : start + payload], between]
        """The memory for the next bytes of the stream, in order."""
        self.left = payload + len(between)
        """Bytes in ``buffers``."""
        self._filled = 0
        """Bytes of this FPDU, and of the header behind it, that were received."""

    def pull(self, descriptor: int, most: int) -> tuple[int, int, bool]:
        """Receive FPDUs from a socket until about ``most`` bytes were. Return how many bytes of FPDUs that are complete
        were; how many behind these, for ``received``; and whether no more have arrived. Conditions: ``continues``.
        Raise ``OSError`` if the connection has ended, and ``TerminateError`` for a wrong checksum."""
        payload, filled = self._payload, self._filled
        # A checksum is compared before the next FPDU overwrites the trailer.
        number = 1 if self._crc else min((self._end - self._start) // payload - 1, most // payload + 1)
        whole, count, blocked = follow(
            descriptor, self._memory, self._start, payload, self._between, number, self._kind, self._offset, filled
        )
        if not whole:
            return 0, count, blocked
        self._advance(whole)
        return whole * self._size - filled, count, blocked

    def received(self, count: int) -> bool:
        """Note that ``count`` bytes were received into ``buffers``. Return whether every complete header is as
        expected. Raise ``TerminateError`` for a wrong checksum."""
        self._filled += count
        self.left -= count
        if self.left:
            if count:
                self._drop(count)
            return True
        if self.continues:
            header = TAGGED_WORDS.fields_from(self._between, len(self._between) - _HEADER)
            if header == (self._kind, self._offset + self._payload):
                self._advance(1)
                return True
        self._check()
        self.buffers.clear()
        self.fpdus += 1
        self.bytes_done += self._payload
        return not self.continues

    def behind(self) -> bytes:
        """Return a copy of the bytes that were received behind the FPDUs that are done."""
        return bytes(self._between[-_HEADER:])

    def _advance(self, number: int) -> None:
        """Note that so many FPDUs are complete, each followed by a header as expected. Raise ``TerminateError`` if a
        checksum is wrong."""
        self._check()
        size = number * self._payload
        self._start += size
        self._offset += size
        self.fpdus += number
        self.bytes_done += size
        self._lay_out()

    def _drop(self, count: int) -> None:
        """Remove the first ``count`` bytes of ``buffers``, which are more."""
        first = self.buffers[0]
        if len(first) <= count:
            del self.buffers[0]
            count -= len(first)
        self.buffers[0] = self.buffers[0][count:]

    def _check(self) -> None:
        """Raise ``TerminateError`` if the FPDU that is complete has a wrong checksum, unless there are none."""
        if not self._crc:
            return
        crc = crc32c(TAGGED_WORDS.pack_fields(self._kind, self._offset))
        crc = crc32c(self._memory[self._start : self._start + self._payload], crc)
        trailer = self._between[: self._size - _HEADER - self._payload]
        if crc32c(trailer[:-_CRC_SIZE], crc) != int.from_bytes(trailer[-_CRC_SIZE:], "little"):
            raise TerminateError(Fault.CRC)
