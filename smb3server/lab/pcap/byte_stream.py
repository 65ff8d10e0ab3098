"""The bytes of one direction of a TCP connection, cut into messages by who knows where they end."""

from __future__ import annotations

from smb3server.lab.pcap.tcp import Chunk


class ByteStream:
    """Bytes that wait for the rest of their message, with the holes that the capture left in them."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._holes: list[tuple[int, int]] = []
        """Start and end of each hole, relative to the first byte that waits."""
        self.lost_place = False
        """Whether so much is missing that the next message cannot be found by counting."""

    def __len__(self) -> int:
        return len(self._data)

    def append(self, chunk: Chunk) -> None:
        """Add the next bytes."""
        if not chunk.known:
            if not chunk.data:
                self.lose_place()
                return
            self._holes.append((len(self._data), len(self._data) + len(chunk.data)))
        self._data += chunk.data

    def lose_place(self) -> None:
        """Forget all bytes: the next chunk has to begin a message."""
        self.lost_place = True
        self._data.clear()
        self._holes.clear()

    def peek(self, size: int) -> bytes | None:
        """Return the first bytes, or None if some of them are not there or were not captured."""
        if len(self._data) < size or (self._holes and self._holes[0][0] < size):
            return None
        return bytes(self._data[:size])

    @property
    def hole_first(self) -> bool:
        """Whether bytes that were not captured are among the first 4: the head of a message."""
        return bool(self._holes) and self._holes[0][0] < 4

    def take(self, size: int) -> tuple[bytes, int]:
        """Remove the first ``size`` bytes. Return them and how many of them are there up to the first hole."""
        data = bytes(self._data[:size])
        del self._data[:size]
        whole = size
        if self._holes:
            whole = min(self._holes[0][0], size)
            self._holes = [(max(start - size, 0), end - size) for start, end in self._holes if end > size]
        return data, whole
