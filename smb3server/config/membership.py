"""Make the settings of a domain's member from what the configuration file says."""

from __future__ import annotations

from pathlib import Path

from smb3server.config import schema
from smb3server.config.error import Problems
from smb3server.config.model import Config
from smb3server.settings.declaring import seconds
from smb3server.settings.domain import DomainConfig

OWNER = "[domain]"
_FIRST_ID = 1000
"""Ids below belong to the host's own users. [Debian Policy 9.2.2]"""


def membership_of(document: schema.Document, problems: Problems) -> DomainConfig | None:
    """Return the settings of a document, without a look at the rest of it. None: it has no section [domain], or
    mistakes in it."""
    if document.domain is None:
        return None
    config = Config(state=Path(document.server.state) if document.server.state else None)
    config.settings.server_name = document.server.name or config.settings.server_name
    return membership(document.domain, config, problems)


def membership(section: schema.Domain, config: Config, problems: Problems) -> DomainConfig | None:
    """Return the settings. None if there are mistakes that are noted in ``problems``.

    Without a keytab of its own, the server uses the machine account's.
    """
    if section.secret is None and config.state is None:
        problems.add(OWNER, "secret", "needs a place: set it, or `state` in [server]")
        return None
    secret = Path(section.secret) if section.secret is not None else (config.state or Path()) / "domain.secret"
    keytab = Path(section.keytab) if section.keytab is not None else secret.with_name("domain.keytab")
    if not config.settings.keytab:
        config.settings.keytab = str(keytab)
    first, last = section.id_range
    if not _FIRST_ID <= first < last:
        problems.add(OWNER, "id_range", f"{first} to {last}: must rise, and begin at {_FIRST_ID} or above")
    realm = section.realm.upper()
    return DomainConfig(
        realm,
        (section.workgroup or realm.partition(".")[0][:15]).upper(),
        (section.machine or config.settings.server_name).upper(),
        secret,
        keytab,
        tuple(section.controllers),
        section.site or "",
        0 if section.rotation == "never" else seconds(section.rotation),
        section.idmap,
        (first, last),
    )
