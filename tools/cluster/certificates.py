"""Certificates for a private etcd and its clients."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

# RFC 5280, 4.2.1.1 to 4.2.1.3. CPython 3.13 and later refuse certificates without these extensions.
_FOR_SIGNING = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Pair(NamedTuple):
    """PEM files."""

    cert: Path
    key: Path


class Authority:
    """An authority that signs certificates and puts them into ``folder``; its own one is ``ca``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = self._write(name, self._name, self._key, days=30, addresses=(), is_authority=True).cert

    def issue(self, name: str, addresses: tuple[str, ...] = ("127.0.0.1",), days: int = 30) -> Pair:
        """Issue a certificate that expires in ``days``; a negative number means that it has expired.

        The subject has no common name: etcd's gateway would refuse a certificate with one from clients that log on as a
        user.
        """
        subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, name)])
        return self._write(name, subject, ec.generate_private_key(ec.SECP256R1()), days, addresses, False)

    def named(self, name: str) -> Pair:
        """Issue a certificate with a common name."""
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return self._write(name, subject, ec.generate_private_key(ec.SECP256R1()), 30, (), False)

    def _write(
        self,
        name: str,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        days: int,
        addresses: tuple[str, ...],
        is_authority: bool,
    ) -> Pair:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if is_authority:
            builder = builder.add_extension(_FOR_SIGNING, critical=True)
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair
