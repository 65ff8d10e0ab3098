"""Make the settings of a domain's member from what the configuration file says."""

from __future__ import annotations

from pathlib import Path

from smb3server.auth.ntlm_messages import Home
from smb3server.config import schema
from smb3server.config.error import Problems
from smb3server.config.model import Config
from smb3server.settings.declaring import seconds
from smb3server.settings.domain import DomainConfig

OWNER = "[domain]"


def membership_of(document: schema.Document, problems: Problems) -> DomainConfig | None:
    """Return the settings of a document, without a look at the rest of it. None: it has no section [domain], or
    mistakes in it."""
    if document.domain is None:
        return None
    config = Config(state=Path(document.server.state) if document.server.state else None)
    config.settings.server_name = document.server.name or config.settings.server_name
    config.settings.keytab = document.server.keytab or ""
    return membership(document.domain, config, problems)


def membership(section: schema.Domain, config: Config, problems: Problems) -> DomainConfig | None:
    """Return the settings. None if there are mistakes that are noted in ``problems``.

    The server uses the machine account's keys.
    """
    secret = Path(section.secret) if section.secret is not None else None
    if secret is None and config.state is not None:
        secret = config.state / "domain.secret"
    settings = config.settings
    beside = str(secret.with_name("domain.keytab")) if secret is not None else ""
    settings.keytab = section.keytab or settings.keytab or beside
    if not settings.keytab:
        problems.add(OWNER, "keytab", "is needed: the server's keys in the domain; or set `state` in [server]")
        return None
    realm = section.realm.upper()
    workgroup = (section.workgroup or realm.partition(".")[0][:15]).upper()
    machine = (section.machine or settings.server_name).upper()
    if secret is not None:
        settings.home = Home(machine, workgroup, realm)
    first, last = section.id_range
    return DomainConfig(
        realm,
        workgroup,
        Path(settings.keytab),
        machine,
        secret,
        tuple(section.controllers),
        section.site or "",
        0 if section.rotation == "never" else seconds(section.rotation),
        section.idmap,
        (first, last),
    )
