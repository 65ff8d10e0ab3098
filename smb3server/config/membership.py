"""Make the settings of a domain's member from what the configuration file says."""

from __future__ import annotations

import re
from pathlib import Path

from smb3server.access.descriptor import Sid
from smb3server.auth.ntlm_messages import Home
from smb3server.config import schema
from smb3server.config.error import Problems
from smb3server.config.model import Config
from smb3server.settings.declaring import seconds
from smb3server.settings.domain import DomainConfig

OWNER = "[domain]"
_RANGE = re.compile(r"(S-1-5-21(?:-[0-9]{1,10}){3}) ([0-9]{1,10})-([0-9]{1,10})")


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
        _trusted_ranges(section, problems),
        tuple(section.central_policies) if section.central_policies is not None else None,
    )


def _trusted_ranges(section: schema.Domain, problems: Problems) -> dict[Sid, tuple[int, int]]:
    """Return the ranges of trusted domains."""
    found: dict[Sid, tuple[int, int]] = {}
    for text in section.trusted_ranges:
        entry = _RANGE.fullmatch(text)
        if entry is None:
            problems.add(OWNER, "trusted_ranges", f"{text!r} is not written as S-1-5-21-1-2-3 1000000-1099999")
        else:
            found[Sid.parse(entry[1])] = (int(entry[2]), int(entry[3]))
    return found
