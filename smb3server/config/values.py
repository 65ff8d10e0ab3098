"""Values that need more than their type to be right. The functions raise ``ConfigError`` with what is wrong."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re

from smb3server.backends import names
from smb3server.backends.base import User
from smb3server.backends.snapshot_names import PatternError, SnapshotPattern, parse
from smb3server.config.error import ConfigError

RDMA_CHOICES = ("auto", "off", "iwarp", "roce", "verbs")
_BAD_SHARE_NAME = re.compile(r'[\x00-\x1f"/\\\[\]:|<>+=;,*?]')
_MAX_SHARE_NAME = 80


def parse_rdma(text: str) -> str:
    """Read ``auto``, ``off``, or fabrics separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in RDMA_CHOICES]:
        raise ConfigError(f"{unknown[0] or 'nothing'} is not one of {', '.join(RDMA_CHOICES)}")
    if len(names) > 1 and (len(set(names)) < len(names) or {"auto", "off"} & set(names)):
        raise ConfigError(f"{text}: auto and off stand alone, and a fabric is named once")
    return ",".join(names)


def parse_fingerprint(text: str) -> str:
    """Return the SHA-256 of a certificate in lower case, without the colons that openssl writes."""
    plain = text.replace(":", "").lower()
    if not re.fullmatch("[0-9a-f]{64}", plain):
        raise ConfigError(
            f"{text}: not the SHA-256 of a certificate; `openssl x509 -in FILE -noout -fingerprint -sha256` shows it"
        )
    return plain


def check_share_name(name: str) -> None:
    """Check the name of a share."""
    if not name or len(name) > _MAX_SHARE_NAME or _BAD_SHARE_NAME.search(name) or name != name.strip():
        raise ConfigError(f"{name!r} is not a valid share name")
    if name in (".", ".."):
        raise ConfigError(f"{name!r} is not a valid share name")
    if name.casefold() == "ipc$":
        raise ConfigError("the name IPC$ is reserved")


def split_folder(text: str) -> tuple[str, ...]:
    """Return the components of a folder in a share. They must be names that Windows allows."""
    path = tuple(entry for entry in text.split("/") if entry)
    try:
        for entry in path:
            names.check_component(entry.replace("{user}", "user"))
    except OSError as error:
        raise ConfigError(f"{text}: {error.strerror}") from error
    if not path or "{user}" in path[0]:
        raise ConfigError(f'{text}: write a folder in the share, as ".recycle/{{user}}"')
    return path


def snapshot_pattern(text: str, folder: str, times: str) -> SnapshotPattern | None:
    """Return where the snapshots of a share are; None for an empty text. ``folder`` is the share's, ``times`` the value
    of ``snapshot_times``."""
    if not text:
        return None
    try:
        return parse(text, folder, times == "local")
    except PatternError as error:
        raise ConfigError(f"{text}: {error}") from error


def check_address(text: str) -> None:
    """Check an address to listen on."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f"{text}: not an IP address; write IPv6 without brackets, and ports separately") from None
    if isinstance(address, ipaddress.IPv6Address) and address.is_link_local and not address.scope_id:
        raise ConfigError(f"{text}: a link-local address needs its interface, as in {text}%eth0")


def unix_user(name: str, shared: bool = False) -> User:
    """Look up the credentials of a user of the host.

    ``shared`` means that several users act as this one. ``host_users`` says who may be acted as.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"this machine has no user {name}") from None
    return User(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)), shared)
