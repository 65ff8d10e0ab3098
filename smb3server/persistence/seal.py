"""The seal on a record: what shows that its writer knows the cluster's secret.

A sealed value is a version byte, an HMAC-SHA256 (RFC 2104) and the content. The HMAC is over the key's name and the
content, under a key that is derived from the secret and the cluster's name. So a value is good under the one key name
that it was written for, in the one cluster. The key's name says what kind of record it is.
"""

from __future__ import annotations

import hmac
import secrets

VERSION = 0x81
"""First byte of a sealed value. No content begins with it: that is JSON, or ``peers.pack``."""
_TAG_SIZE = 32
_OVERHEAD = 1 + _TAG_SIZE
_LABEL = b"smb3server cluster record, version 1\0"


class SealError(Exception):
    """Says why a record is not acted upon."""


def new_secret() -> str:
    """A secret of 256 bits, as one line of text."""
    return secrets.token_hex(32)


class Seal:
    """Of one cluster. Without a ``secret`` nothing is sealed, and what is sealed is refused."""

    def __init__(self, secret: bytes | None, cluster: str) -> None:
        self._key = None if secret is None else hmac.digest(secret, _LABEL + cluster.encode(), "sha256")

    @property
    def has_secret(self) -> bool:
        return self._key is not None

    def close(self, key: str, content: bytes) -> bytes:
        """The value to store under ``key``."""
        if self._key is None:
            return content
        return bytes([VERSION]) + _tag(self._key, key, content) + content

    def open(self, key: str, value: bytes) -> bytes:
        """The content of what is stored under ``key``. Raises ``SealError``."""
        sealed = value[:1] == bytes([VERSION])
        if self._key is None:
            if sealed:
                raise SealError("it bears the seal of a cluster with a secret; remedy: give its secret_file")
            return value
        if not sealed:
            raise SealError("it bears no seal")
        content = value[_OVERHEAD:]
        if not hmac.compare_digest(value[1:_OVERHEAD], _tag(self._key, key, content)):
            raise SealError("its seal is not this cluster's, or not of this key")
        return content


def _tag(secret: bytes, key: str, content: bytes) -> bytes:
    name = key.encode()
    # The length keeps a name's end from passing for content.
    return hmac.digest(secret, len(name).to_bytes(4, "big") + name + content, "sha256")
