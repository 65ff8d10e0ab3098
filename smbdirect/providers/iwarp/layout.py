"""Where the rest of a long tagged message will lie in the stream, as its first FPDU lets expect. No I/O.

Nobody can know this: the peer may cut the next FPDU elsewhere, or send another message between two FPDUs. So what was
received counts only after the headers in it were compared.

A Read Response has to overwrite the whole sink, and nothing in it counts before the Read completes. So payloads may be
received there before their headers are known. For an RDMA Write only the next header is expected: bytes that the peer
does not write must stay as they are.
"""

from __future__ import annotations

from crc32c import crc32c

from smbdirect.providers.iwarp.ddp import TAGGED_HEADER, TAGGED_HEADER_SIZE, TAGGED_WORDS
from smbdirect.providers.iwarp.frames import follow
from smbdirect.providers.iwarp.mpa import fpdu_size
from smbdirect.providers.iwarp.rdmap import Fault, TerminateError

AHEAD = 16
"""FPDUs of a Read Response that are received at once. Each system call is handed a buffer or two for each."""
_HEADER = TAGGED_HEADER.size
_CRC_SIZE = 4


class Layout:
    """Equally long FPDUs of one message, none of them the last, whose payloads lie in memory one after the other.

    ``buffers`` are for a group of these FPDUs. The trailer of each and the header of the next are received into memory
    of the layout. The header of the first FPDU and the first bytes of its payload were received before.
    """

    __slots__ = (
        "_at", "_between", "_compared", "_count", "_crc", "_done", "_end", "_filled", "_gap", "_kind", "_memory",
        "_most", "_offset", "_payload", "_start", "buffers", "bytes_done", "continues", "fpdus", "left",
    )  # fmt: skip

    def __init__(
        self, memory: memoryview, start: int, end: int, header: tuple[int, int], payload: int, ahead: int, crc: bool
    ) -> None:
        """``memory[start:end]`` is what FPDUs other than the last may fill. ``header`` is the first FPDU's, as
        ``TaggedWords``, and ``payload`` the length of its payload. Groups have up to ``ahead`` FPDUs."""
        self._memory = memory
        self._start = start
        self._end = end
        self._kind, self._offset = header
        self._payload = payload
        self._gap = fpdu_size(TAGGED_HEADER_SIZE + payload) - payload
        self._between = memoryview(bytearray(ahead * self._gap))
        """For each FPDU of a group its trailer and the header of the next."""
        self._most = ahead
        self._crc = crc
        self.fpdus = 0
        """FPDUs that are complete and right."""
        self.bytes_done = 0
        """Bytes of payload in them."""
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay out the next group, which begins behind the header of its first FPDU."""
        memory, payload, gap, between = self._memory, self._payload, self._gap, self._between
        start = self._start
        room = (self._end - start) // payload
        self._count = count = min(room, self._most)
        self.continues = room > count
        """Whether another group is expected. Then the header of its first FPDU is the end of this group."""
        self.buffers = [memory[start : start + payload]]
        """The memory for the next bytes of the stream, in order."""
        for at in range(0, gap * (count - 1), gap):
            start += payload
            self.buffers.append(between[at : at + gap])
            self.buffers.append(memory[start : start + payload])
        end = gap * count if self.continues else gap * count - _HEADER
        self.buffers.append(between[gap * (count - 1) : end])
        self.left = payload * count + end
        """Bytes in ``buffers``."""
        self._filled = 0
        """Bytes of the group that were received."""
        self._done = 0
        """FPDUs of the group that are complete and right."""
        self._compared = 1
        """Headers of the group that were compared. Invariant: ``_done`` or one more."""
        self._at = -_HEADER
        """Where the header of the FPDU number ``_done`` begins in the group."""

    @property
    def one_by_one(self) -> bool:
        """Whether ``pull`` may receive what comes next."""
        return self._most == 1 and self.continues

    def pull(self, descriptor: int, most: int) -> tuple[int, int, bool]:
        """Receive FPDUs from a socket until about ``most`` bytes were. Return how many bytes of FPDUs that are complete
        were; how many behind these, for ``received``; and whether no more have arrived. Conditions: ``one_by_one``.
        Raise ``OSError`` if the connection has ended."""
        payload = self._payload
        groups = min((self._end - self._start) // payload - 1, most // payload + 1)
        whole, count, blocked = follow(
            descriptor,
            self._memory,
            self._start,
            payload,
            self._between,
            groups,
            self._kind,
            self._offset,
            self._filled,
        )
        if not whole:
            return 0, count, blocked
        self._start += whole * payload
        self._offset += whole * payload
        self.fpdus += whole
        self.bytes_done += whole * payload
        self._lay_out()
        return whole * payload, count, blocked

    def received(self, count: int) -> bool:
        """Note that ``count`` bytes were received into ``buffers``. Return whether every complete header is as
        expected. Raise ``TerminateError`` for a wrong checksum."""
        if count == self.left and not self._filled and not self._crc and self._is_whole():
            return True
        self._filled += count
        self.left -= count
        if self.left:
            self._drop(count)
        else:
            self.buffers.clear()
        payload, gap = self._payload, self._gap
        while True:
            number = self._done
            if self._compared == number:
                if self._filled < self._at + _HEADER:
                    return True
                header = TAGGED_WORDS.fields_from(self._between, number * gap - _HEADER)
                if header != (self._kind, self._offset + number * payload):
                    return False
                self._compared = number + 1
                if number == self._count:
                    self._start += number * payload
                    self._offset += number * payload
                    self._lay_out()
                    return True
            if self._filled < self._at + gap + payload:
                return True
            if self._crc and not self._intact(number):
                raise TerminateError(Fault.CRC)
            self._done = number + 1
            self._at += gap + payload
            self.fpdus += 1
            self.bytes_done += payload
            if not self.left and self._done == self._count and not self.continues:
                return True

    def _is_whole(self) -> bool:
        """Finish the group, of which all bytes were received by one call, if all headers are as expected. Return
        whether they are."""
        offset, payload, gap = self._offset, self._payload, self._gap
        headers = self._count if self.continues else self._count - 1
        for at in range(gap, gap * headers + 1, gap):
            offset += payload
            if TAGGED_WORDS.fields_from(self._between, at - _HEADER) != (self._kind, offset):
                return False
        self.fpdus += self._count
        self.bytes_done += self._count * payload
        if self.continues:
            self._start += self._count * payload
            self._offset = offset
            self._lay_out()
        else:
            self.left = 0
            self.buffers.clear()
        return True

    def behind(self) -> bytes:
        """Return a copy of the bytes that were received behind the FPDUs that are done."""
        payload, gap, number = self._payload, self._gap, self._done
        left = self._filled - self._at
        parts = [self._between[number * gap - _HEADER : number * gap]]
        while sum(map(len, parts)) < left:
            start = self._start + number * payload
            parts.append(self._memory[start : start + payload])
            parts.append(self._between[number * gap : (number + 1) * gap])
            number += 1
        return b"".join(parts)[:left]

    def _drop(self, count: int) -> None:
        """Remove the first ``count`` bytes of ``buffers``, which are more."""
        buffers, full = self.buffers, 0
        while len(buffers[full]) <= count:
            count -= len(buffers[full])
            full += 1
        buffers[full] = buffers[full][count:]
        del buffers[:full]

    def _intact(self, number: int) -> bool:
        """Return whether the checksum of this FPDU of the group is right."""
        start = self._start + number * self._payload
        crc = crc32c(TAGGED_WORDS.pack_fields(self._kind, self._offset + number * self._payload))
        crc = crc32c(self._memory[start : start + self._payload], crc)
        trailer = self._between[number * self._gap : (number + 1) * self._gap - _HEADER]
        crc = crc32c(trailer[:-_CRC_SIZE], crc)
        return bool(crc == int.from_bytes(trailer[-_CRC_SIZE:], "little"))
