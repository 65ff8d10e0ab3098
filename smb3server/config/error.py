"""The error that everything in this room raises."""

from __future__ import annotations


class ConfigError(Exception):
    """Says what is wrong in the configuration, and where."""
