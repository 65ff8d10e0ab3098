"""What the command line sets, and the whole configuration from it and the file."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smb3server.config.build import build
from smb3server.config.checks import check_use, find
from smb3server.config.error import Place, Problems
from smb3server.config.model import Config
from smb3server.config.reader import read_document
from smb3server.config.schema import Discovery, Document, Share, User, Web
from smb3server.settings.declaring import Section
from smb3server.settings.observing import TraceConfig


def default_name() -> str:
    """Return this machine's name as a NetBIOS name."""
    return re.sub(r"[^A-Za-z0-9-]", "", socket.gethostname().split(".")[0]).upper()[:15] or "SMB3SERVER"


@dataclass(slots=True)
class CommandLine:
    """What the command line sets.

    Passwords that it asks for are known already, so the configuration can be read again and again.
    """

    file: Path | None = None
    shares: list[Share] = field(default_factory=list)
    users: list[User] = field(default_factory=list)
    guest: bool = False
    server: dict[str, object] = field(default_factory=dict)
    """Keys of the section [server], with their values."""
    cluster: dict[str, object] = field(default_factory=dict)
    """Keys of the section [cluster], with their values."""
    web: dict[str, object] = field(default_factory=dict)
    """Keys of the section [web], with their values. If there are any, there is a web page."""
    discover: bool = False
    """Whether the section [discovery] is there even if the file has none."""
    passwords: list[str] = field(default_factory=list, repr=False)
    """Values ``NAME:PASSWORD`` as given."""
    traces: list[TraceConfig] = field(default_factory=list)

    def document(self, problems: Problems) -> Document:
        """Read the file and override it. Mistakes in the file are noted in ``problems``.

        Raises ``ConfigError`` if it cannot be read at all.
        """
        document = Document() if self.file is None else read_document(self.file, problems)
        shares = {share.name.casefold(): share for share in self.shares}
        users = {user.name.casefold(): user for user in self.users}
        kept = [share for share in document.share if share.name.casefold() not in shares]
        document.share = [*kept, *shares.values()]
        document.user = [user for user in document.user if user.name.casefold() not in users] + self.users
        for name in (share.name for share in self.shares):
            problems.override(f"share {name}", f"--share {name}")
        for name in (user.name for user in self.users):
            problems.override(f"user {name}", f"--user {name}")
        if self.guest:
            document.server.guest = True
            for share in document.share:
                share.guest = True
        _override("[server]", document.server, self.server, problems)
        _override("[cluster]", document.cluster, self.cluster, problems)
        if self.web:
            document.web = document.web or Web()
            _override("[web]", document.web, self.web, problems)
        if self.discover:
            document.discovery = document.discovery or Discovery()
        return document

    def build(self, document: Document, problems: Problems) -> Config:
        """Make the configuration and check it. Mistakes are noted in ``problems``."""
        config = build(document, problems)
        config.settings.server_name = document.server.name or default_name()
        config.command_line_passwords = self.passwords
        config.traces = self.traces
        find(config, problems)
        if not problems.found:
            check_use(config, self.file, problems)
        return config

    def read(self) -> Config:
        """Read the whole configuration. Raises ``ConfigError`` with all mistakes."""
        problems = Problems()
        config = self.build(self.document(problems), problems)
        problems.finish()
        return config


_OPTIONS = {"etcd": "cluster", "admins": "admin"}
"""Options by their keys, where the two are not called the same."""


def _override(owner: str, section: Section, given: Mapping[str, object], problems: Problems) -> None:
    for key, value in given.items():
        setattr(section, key, value)
        option = "web" if owner == "[web]" else _OPTIONS.get(key, key.replace("_", "-"))
        problems.places[owner, key] = Place(option=f"--{option}")
