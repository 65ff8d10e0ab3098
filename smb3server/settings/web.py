"""Settings of the web page. The section [web] of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class WebConfig:
    """The section [web]. Without it, there is no web page."""

    listen: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8445
    """TCP port. 0 means any."""
    admins: frozenset[str] | None = None
    """Who may log on to the page, as in ``Settings.admins``. None means the server's administrators."""
    certificate: Path | None = None
    """PEM file with the certificate and those between it and its authority. None means plain HTTP."""
    key: Path | None = None
    """PEM file with the certificate's key. None means that it is in the same file."""
    names: tuple[str, ...] = ()
    """Further host names by which browsers may ask for the page. Addresses and the server's own names always may."""
    plain_http: bool = False
    """Whether to serve other machines without TLS. Passwords and files' names then cross the network in the clear."""
