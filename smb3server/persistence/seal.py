"""The seal on a record. It proves that the writer knows the cluster's secret.

A sealed value is a version byte, an HMAC-SHA256 (RFC 2104) and the content. The HMAC covers the key's name and the
content. Its key is derived from the secret and the cluster's name. So a value is valid only under the key name that it
was written for, and only in one cluster. The key's name determines the kind of the record.
"""

from __future__ import annotations

import hmac
import secrets

VERSION = 0x81
"""First byte of a sealed value. No content begins with it: contents are JSON, or made by ``peers.pack``."""
_TAG_SIZE = 32
_OVERHEAD = 1 + _TAG_SIZE
_LABEL = b"smb3server cluster record, version 1\0"


class SealError(Exception):
    """A record is ignored. The text says why."""


def new_secret() -> str:
    """Return a new secret of 256 bits, as one line of text."""
    return secrets.token_hex(32)


class Seal:
    """The seal of one cluster."""

    def __init__(self, secret: bytes | None, cluster: str) -> None:
        """``secret``: None means that values are not sealed and sealed ones are refused. ``cluster``: its name."""
        self._key = None if secret is None else hmac.digest(secret, _LABEL + cluster.encode(), "sha256")

    @property
    def has_secret(self) -> bool:
        """Whether values are sealed."""
        return self._key is not None

    def close(self, key: str, content: bytes) -> bytes:
        """Return the value to store under ``key``: ``content`` with its seal."""
        if self._key is None:
            return content
        return bytes([VERSION]) + _tag(self._key, key, content) + content

    def open(self, key: str, value: bytes) -> bytes:
        """Return the content of ``value``, which is stored under ``key``. Raises ``SealError``."""
        sealed = value[:1] == bytes([VERSION])
        if self._key is None:
            if sealed:
                raise SealError("it has the seal of a cluster with a secret; remedy: give its secret_file")
            return value
        if not sealed:
            raise SealError("it has no seal")
        content = value[_OVERHEAD:]
        if not hmac.compare_digest(value[1:_OVERHEAD], _tag(self._key, key, content)):
            raise SealError("its seal is of another cluster or another key")
        return content


def _tag(secret: bytes, key: str, content: bytes) -> bytes:
    name = key.encode()
    # With the length, no part of a name can pass as content.
    return hmac.digest(secret, len(name).to_bytes(4, "big") + name + content, "sha256")
