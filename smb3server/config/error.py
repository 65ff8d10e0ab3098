"""The error of everything here."""

from __future__ import annotations


class ConfigError(Exception):
    """Says what is wrong, and where."""
