"""Settings of the membership in a domain. The section [domain] of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

IdMapping = Literal["rid", "autorid"]
"""How SIDs become uids and gids."""
FIRST_ID, LAST_ID = 100_000, 999_999
SLICE = 100_000
"""Numbers that ``autorid`` gives to a domain at a time."""


@dataclass(slots=True)
class DomainConfig:
    """The section [domain]. Without it, the server is no member of a domain."""

    realm: str
    """Name of the domain in DNS, in capitals, which is its Kerberos realm."""
    workgroup: str
    """NetBIOS name of the domain."""
    keytab: Path
    """File with the machine account's keys."""
    id_mapping: IdMapping = "rid"
    id_range: tuple[int, int] = (FIRST_ID, LAST_ID)
    """First and last uid and gid of users and groups of the domain."""
