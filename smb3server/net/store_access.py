"""Credentials for a cluster's store and the secret that seals its records: loaded from the files that the configuration
names, and checked."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from smb3server.net.store_url import has_tls, is_exposed, parse_url
from smb3server.process.secret_files import SecretFileError, read_secret

log = logging.getLogger(__name__)

MIN_SECRET = 16
"""Minimum bytes in a secret file, without its line end."""
_SOON = 14
"""Days before the end of a certificate from which on a warning is logged."""


class AccessError(ValueError):
    """The configured credentials for etcd cannot be used."""


@dataclass(slots=True)
class StoreAccess:
    """How a node connects to the store, and how records are sealed.

    These are keys of the section [cluster], and options of ``smb3server cluster``. The
    functions below load and check the files that are named here.
    """

    ca: Path | None = None
    """Authorities that may have signed etcd's certificate. None means the system's."""
    cert: Path | None = None
    """Certificate of this node for etcd. None means that it has none."""
    key: Path | None = None
    """Private key of ``cert``."""
    user: str = ""
    """User name for etcd. Empty means that none is sent."""
    password_file: Path | None = None
    """File with the password of ``user``."""
    secret_file: Path | None = None
    """File with the secret that records are sealed with. None means that records are not sealed."""
    unauthenticated_store: bool = False
    """Whether records need no seal even if they contain opens."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The credentials for etcd."""

    tls: ssl.SSLContext | None = None
    """Context for https endpoints. None means the system's authorities and no certificate of this node."""
    user: str = ""
    """User name for etcd. Empty means that none is sent."""
    password: str = field(default="", repr=False)


def load_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return a context that checks etcd's certificate and its host name.

    ``ca`` has the authorities to trust; None means the system's. ``cert`` and ``key`` identify this node to etcd.
    Raises ``AccessError``.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise AccessError(f"ca {ca}: {_said(error)}; it must be a PEM file of certificates") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is None and key is None:
        return context
    if cert is None or key is None:
        raise AccessError("cert and key go together")
    try:
        read_secret(key)
        # Without a password callback OpenSSL would prompt on the terminal for the password of an encrypted key.
        context.load_cert_chain(cert, key, password=lambda: "")
    except SecretFileError as error:
        raise AccessError(f"key {error}") from error
    except OSError as error:
        raise AccessError(
            f"cert {cert}, key {key}: {_said(error)}; they must be PEM files that belong together, the key unencrypted"
        ) from error
    _check_dates(cert)
    return context


def _check_dates(cert: Path) -> None:
    """Raise ``AccessError`` if the certificate has expired, because etcd would only report a bad certificate."""
    # A server without a cluster starts faster without it.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(cert.read_bytes())
    except (OSError, ValueError) as error:
        raise AccessError(f"cert {cert}: {error}") from error
    now = datetime.now(UTC)
    if now > found.not_valid_after_utc:
        raise AccessError(f"cert {cert}: expired on {found.not_valid_after_utc:%Y-%m-%d}; remedy: renew it")
    left = (found.not_valid_after_utc - now).days
    if left < _SOON:
        log.warning("cert %s expires in %d days: etcd will refuse this node then", cert, left)


def load_password(path: Path) -> str:
    """Return the first line of a file that only its owner may read. Raises ``AccessError``."""
    try:
        text = read_secret(path).decode()
    except (SecretFileError, UnicodeDecodeError) as error:
        raise AccessError(f"password_file {error}") from error
    password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise AccessError(f"password_file {path}: its first line is empty")
    return password


def load_secret(path: Path) -> bytes:
    """Return the cluster's secret, from a file that only its owner may read. Raises ``SecretFileError``."""
    secret = read_secret(path).strip()
    if len(secret) < MIN_SECRET:
        raise SecretFileError(
            f"{path}: the secret must have at least {MIN_SECRET} characters; remedy: smb3server cluster secret FILE"
        )
    return secret


def etcd_access(url: str, access: StoreAccess) -> EtcdAccess:
    """Return the credentials for etcd at ``url``. Raises ``AccessError``, or ``ValueError`` for a malformed URL."""
    endpoints = parse_url(url)
    if bool(access.user) != (access.password_file is not None):
        raise AccessError("user and password_file go together")
    tls = None
    if has_tls(endpoints):
        tls = load_tls(access.ca, access.cert, access.key)
    elif access.ca is not None or access.cert is not None or access.key is not None:
        raise AccessError(f"{url}: ca, cert and key need TLS: write etcds:// instead of etcd://")
    password = "" if access.password_file is None else load_password(access.password_file)
    return EtcdAccess(tls, access.user, password)


def cluster_secret(access: StoreAccess) -> bytes | None:
    """Return the secret of the cluster, or None if records are not sealed. Raises ``AccessError``."""
    if access.secret_file is None:
        return None
    try:
        return load_secret(access.secret_file)
    except SecretFileError as error:
        raise AccessError(f"secret_file {error}") from error


def check(url: str, access: StoreAccess, keeps_opens: bool) -> None:
    """Raise ``ValueError`` if a setting is missing or cannot be used. ``keeps_opens`` means that persistent opens are
    stored."""
    etcd_access(url, access)
    cluster_secret(access)
    if access.secret_file is not None and access.unauthenticated_store:
        raise AccessError("secret_file and unauthenticated_store contradict each other")
    if keeps_opens and access.secret_file is None and not access.unauthenticated_store:
        raise AccessError(
            "shares with continuous_availability need a secret_file: anybody who can write to etcd could forge their "
            "open files; remedy: make one with `smb3server cluster secret FILE` and copy it to all nodes, or set "
            "unauthenticated_store = true if nobody else can write to etcd"
        )


def warnings(url: str, access: StoreAccess) -> list[str]:
    """Return warnings for the operator about a store that others can read or change."""
    found: list[str] = []
    if is_exposed(parse_url(url)):
        found.append(
            "etcd is reached WITHOUT TLS over a network: anybody on it can read and change the cluster's state"
            + (", and learns the user's password" if access.user else "")
            + "; remedy: have etcd speak TLS and write etcds:// (docs/high-availability.md)"
        )
    if access.secret_file is None:
        found.append(
            "records in etcd are NOT authenticated: anybody who can write to etcd can move services and forge open "
            "files; remedy: `smb3server cluster secret FILE` and secret_file = FILE on all nodes"
        )
    return found


def _said(error: OSError) -> str:
    return error.strerror or str(error)
