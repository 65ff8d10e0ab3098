"""Optional parts of the program: packages that only some features need."""

from __future__ import annotations


def remedy(part: str) -> str:
    """Return how to install a part that is missing. No index has the project."""
    where = "in a folder with smb3server's source (docs/install.md)"
    # Kerberos is built against libraries of the machine.
    also = "" if part in ("domain", "kerberos") else "; the Debian package has it"
    return f"remedy: pip install '.[{part}]' {where}{also}"
