"""What a cluster's store is reached with, and what its records are sealed with: as configured, and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smb3server.persistence.etcd_access import AccessError, EtcdAccess, load_password, load_tls
from smb3server.persistence.seal import Seal, load_secret
from smb3server.process.secret_files import SecretFileError
from smb3server.settings.store_url import has_tls, is_exposed, parse_url


@dataclass(slots=True)
class StoreAccess:
    """Keys of the section [cluster], and options of ``smb3server cluster``."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password_file: Path | None = None
    secret_file: Path | None = None
    unauthenticated_store: bool = False
    """Records need no seal although opens are among them."""


def etcd_access(url: str, access: StoreAccess) -> EtcdAccess:
    """What to reach etcd at ``url`` with. Raises ``AccessError``, ``ValueError``."""
    endpoints = parse_url(url)
    if bool(access.user) != (access.password_file is not None):
        raise AccessError("user and password_file go together")
    tls = None
    if has_tls(endpoints):
        tls = load_tls(access.ca, access.cert, access.key)
    elif access.ca is not None or access.cert is not None or access.key is not None:
        raise AccessError(f"{url}: ca, cert and key need TLS: write etcds:// for etcd://")
    password = "" if access.password_file is None else load_password(access.password_file)
    return EtcdAccess(tls, access.user, password)


def seal_of(name: str, access: StoreAccess) -> Seal:
    """Of the cluster with this name. Raises ``AccessError``."""
    if access.secret_file is None:
        return Seal(None, name)
    try:
        return Seal(load_secret(access.secret_file), name)
    except SecretFileError as error:
        raise AccessError(f"secret_file {error}") from error


def check(url: str, name: str, access: StoreAccess, keeps_opens: bool) -> None:
    """Raise ``ValueError`` for what cannot be used, or is missing. ``keeps_opens``: persistent opens are stored."""
    etcd_access(url, access)
    seal_of(name, access)
    if access.secret_file is not None and access.unauthenticated_store:
        raise AccessError("secret_file and unauthenticated_store contradict each other")
    if keeps_opens and access.secret_file is None and not access.unauthenticated_store:
        raise AccessError(
            "shares with continuous_availability need a secret_file: whoever can write to etcd could forge their open "
            "files; remedy: make one with `smb3server cluster secret FILE` and copy it to all nodes, or set "
            "unauthenticated_store = true if nobody else can write to etcd"
        )


def warnings(url: str, access: StoreAccess) -> list[str]:
    """What the operator should know about a store that is open to others."""
    found: list[str] = []
    if is_exposed(parse_url(url)):
        found.append(
            "etcd is reached WITHOUT TLS over a network: whoever is on it reads and changes the cluster's state"
            + (", and learns the user's password" if access.user else "")
            + "; remedy: have etcd speak TLS and write etcds:// (docs/high-availability.md)"
        )
    if access.secret_file is None:
        found.append(
            "records in etcd are NOT authenticated: whoever can write to it moves services and forges open files; "
            "remedy: `smb3server cluster secret FILE` and secret_file = FILE on all nodes"
        )
    return found
