"""Obstacles to a measurement, in words for the person who started the bench."""

from __future__ import annotations


class BenchError(Exception):
    """The machine lacks something, or a server or the client failed. The text says what to do about it."""
