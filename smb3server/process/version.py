"""The version of the installed package."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the version, or "0" if the package runs from a tree without being installed."""
    try:
        return metadata.version("smb3server")
    except metadata.PackageNotFoundError:
        return "0"
