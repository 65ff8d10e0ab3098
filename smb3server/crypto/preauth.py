"""The preauthentication integrity hash of 3.1.1. [MS-SMB2 3.3.5.4, 3.3.5.5]"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from smbdirect.codec import Buffer

INITIAL_HASH = bytes(64)


def extend(previous: bytes, segments: Iterable[Buffer]) -> bytes:
    """Return SHA-512(previous || message). The message, in ``segments``, begins with its SMB2 header."""
    digest = hashlib.sha512(previous)
    for segment in segments:
        digest.update(segment)
    return digest.digest()
