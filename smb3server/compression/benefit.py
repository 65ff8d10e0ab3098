"""Whether compression pays, judged by what it has given so far."""

from __future__ import annotations

FIRST_PAUSE = 4 << 20
"""Bytes that are not tried after data that did not shrink. A file mostly is of one kind: what did not shrink once will
not do so soon."""
LONG = 4096
"""Bytes from which data is judged. Short data says little about a file, and need only be shorter."""
LONGEST_PAUSE = 64 << 20
"""The pause doubles up to here. In the long run one MiB of 64 is tried, which costs some hundredths of a second for
each GiB: a file may change its kind."""


class Benefit:
    """The experience with the data of one open."""

    __slots__ = ("_left", "_pause")

    def __init__(self) -> None:
        self._pause = 0
        """Bytes of the last pause; 0 if the data shrank last time."""
        self._left = 0
        """Bytes of the pause that are left."""

    def tries(self, length: int) -> bool:
        """Return whether to compress the next ``length`` bytes."""
        if self._left <= 0:
            return True
        self._left -= length
        return False

    def judge(self, shrank: bool, length: int = LONG) -> None:
        """Note whether compressing ``length`` bytes was worth it."""
        if length < LONG:
            return
        if shrank:
            self._pause = 0
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE) or FIRST_PAUSE
            self._left = self._pause


class Counts:
    """Bytes before and after compression, of a connection or of a whole server."""

    __slots__ = ("_whole", "received", "received_compressed", "sent", "sent_compressed")

    def __init__(self, whole: Counts | None = None) -> None:
        """``whole`` counts the same."""
        self._whole = whole
        self.received = 0
        """Bytes of messages that came compressed, after decompression."""
        self.received_compressed = 0
        """The same as they came."""
        self.sent = 0
        """Bytes of data that was sent compressed, before compression."""
        self.sent_compressed = 0
        """The same as they were sent."""

    def sends(self, original: int, compressed: int) -> None:
        """Count data that is sent compressed."""
        self.sent += original
        self.sent_compressed += compressed
        if self._whole is not None:
            self._whole.sends(original, compressed)

    def receives(self, original: int, compressed: int) -> None:
        """Count a message that came compressed."""
        self.received += original
        self.received_compressed += compressed
        if self._whole is not None:
            self._whole.receives(original, compressed)
