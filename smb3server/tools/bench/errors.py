"""What keeps the bench from measuring, in words for the person who started it."""

from __future__ import annotations


class BenchError(Exception):
    """The machine lacks something, or a server or the client failed; the text says what to do about it."""
