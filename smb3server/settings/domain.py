"""Settings of the membership in a domain. The section [domain] of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from smb3server.access.descriptor import Sid

IdMapping = Literal["rid", "autorid", "rfc2307", "none"]
"""How SIDs become uids and gids. With rfc2307, the domain's directory stores them.

With none, users of the domain act as the users of a share that have none."""
FIRST_ID, LAST_ID = 100_000, 999_999
DEFAULT_ROTATION = 30 * 86400
"""Seconds after which a member changes its machine account's password, as Windows does. [MS-NRPC 3.1.6]"""
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
    machine: str = ""
    """Name of the machine account, without its $."""
    secret: Path | None = None
    """File with the password of the machine account. None means that there is none: users log on by tickets alone."""
    controllers: tuple[str, ...] = ()
    """Host names of controllers in the order to try. Empty means those that DNS names."""
    site: str = ""
    """Site whose controllers are tried first. Empty means that all are equal."""
    rotation: int = DEFAULT_ROTATION
    """Seconds after which the machine account's password is changed. 0 means never."""
    id_mapping: IdMapping = "rid"
    id_range: tuple[int, int] = (FIRST_ID, LAST_ID)
    """First and last uid and gid of users and groups of the domain."""
    trusted_ranges: Mapping[Sid, tuple[int, int]] = field(default_factory=dict)
    """Those of trusted domains, by the domain's SID, with ``rid``."""
    central_policies: tuple[str, ...] | None = None
    """Names of the central access policies that apply. None means all that the directory has."""

    @property
    def host(self) -> str:
        """The server's name in DNS, as its service principals have it."""
        return f"{self.machine}.{self.realm}".lower()
