"""The server's certificate, which may be renewed while it runs, and whose certificates clients must have."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aioquic.tls import Alert, verify_certificate
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate, ExtendedKeyUsage, ExtensionNotFound
from cryptography.x509.oid import ExtendedKeyUsageOID

from smb3server.net.quic.connection import configuration
from smb3server.process.own_files import mark_of

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

log = logging.getLogger(__name__)

RENEWAL = 60.0
"""Seconds between two looks at the files."""


def read(certificate: Path, key: Path | None) -> QuicConfiguration:
    """Return the configuration of a server with a certificate. Raises ``ValueError`` that says what is wrong."""
    made = configuration(client=False)
    try:
        made.load_cert_chain(certificate, key)
    except OSError as error:
        raise ValueError(f"{error.filename or certificate}: {error.strerror or error}") from error
    except (ValueError, TypeError, IndexError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{certificate}: not a PEM file with a certificate and its key: {error}") from error
    if made.private_key is None:
        raise ValueError(f"{certificate}: no key in it; name the file with the key as well")
    if made.private_key.public_key() != made.certificate.public_key():
        raise ValueError(f"{certificate}: the key is that of another certificate")
    return made


class Renewal:
    """Looks at a server's files for a certificate that was renewed."""

    def __init__(self, certificate: Path, key: Path | None, use: Callable[[QuicConfiguration], None]) -> None:
        """``use`` gets the configuration for new connections. Raises ``ValueError`` if the files cannot be used."""
        self._certificate, self._key, self._use = certificate, key, use
        self._seen = self._marks()
        self._timer = asyncio.get_running_loop().call_later(RENEWAL, self._look)
        use(read(certificate, key))

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        return mark_of(self._certificate), mark_of(self._key)

    def look(self) -> None:
        """Use a renewed certificate from now on. One that cannot be used is said in the log, and the old one stays."""
        marks = self._marks()
        if marks == self._seen:
            return
        self._seen = marks
        try:
            self._use(read(self._certificate, self._key))
        except ValueError as error:
            log.warning("QUIC keeps its certificate: %s", error)
        else:
            log.info("QUIC has a new certificate")

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(RENEWAL, self._look)
        self.look()

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()


def fingerprint(certificate: Certificate) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal digits."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


class ClientRules:
    """Which clients may connect, by their certificates."""

    def __init__(self, authority: Path | None, fingerprints: Iterable[str]) -> None:
        """``authority``: PEM file with those who sign certificates of clients, None if the list alone counts.
        ``fingerprints``: as ``fingerprint`` returns them. Empty: whatever the authority has signed."""
        self._authority = authority
        self._fingerprints = frozenset(fingerprints)

    @property
    def asks(self) -> bool:
        """Whether clients need a certificate."""
        return self._authority is not None or bool(self._fingerprints)

    def refusal(self, given: Sequence[Certificate]) -> str:
        """Return why a client may not connect; empty if it may. ``given``: its certificate, and those it sent with
        it."""
        if not self.asks:
            return ""
        if not given:
            return "no certificate"
        own = given[0]
        if self._fingerprints and fingerprint(own) not in self._fingerprints:
            return f"its certificate {fingerprint(own)} is not in the list of clients"
        if self._authority is None:
            return ""
        try:
            verify_certificate(own, list(given[1:]), cafile=str(self._authority))
            usage = own.extensions.get_extension_for_class(ExtendedKeyUsage).value
        except ExtensionNotFound:
            return ""
        except (Alert, ValueError, OSError) as error:
            return f"its certificate {fingerprint(own)}: {error}"
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            return f"its certificate {fingerprint(own)} is not for clients"
        return ""
