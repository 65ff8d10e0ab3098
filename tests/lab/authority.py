"""An authority for certificates, and the files that it makes."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates. ``path`` has its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.path = folder / f"{name}.pem"
        own = self._builder(self._name, self._key, 1).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.path.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - 2 * _DAY).not_valid_after(now + days * _DAY)

    def make(
        self, name: str, addresses: Sequence[str] = (), names: Sequence[str] = (), days: int = 1, client: bool = False
    ) -> Path:
        """Return a PEM file with a certificate and its key. ``days`` may be negative: it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key, days)
        known = [*(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses), *map(x509.DNSName, names)]
        if known:
            builder = builder.add_extension(x509.SubjectAlternativeName(known), critical=False)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        path = self._folder / f"{name}.pem"
        path.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        path.chmod(0o600)
        return path
