"""Preauthentication integrity hash (MS-SMB2 3.1.1: 3.3.5.4 and 3.3.5.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from smbdirect.codec import Buffer

INITIAL_HASH = bytes(64)


def extend(previous: bytes, segments: Iterable[Buffer]) -> bytes:
    """SHA-512(previous || message), the message from its SMB2 header on."""
    digest = hashlib.sha512(previous)
    for segment in segments:
        digest.update(segment)
    return digest.digest()
