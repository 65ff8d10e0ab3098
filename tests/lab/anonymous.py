"""An anonymous logon by NTLM: with neither name nor password."""

from __future__ import annotations

import struct

NEGOTIATE = struct.pack("<8sII", b"NTLMSSP\0", 1, 0x20080205) + bytes(16)


def authenticate() -> bytes:
    """MS-NLMP 3.2.5.1.2: no user, no NT response, an LM response of one zero byte."""
    fields = [(1, 64)] + [(0, 65)] * 5
    head = b"".join(struct.pack("<HHI", length, length, offset) for length, offset in fields)
    return struct.pack("<8sI", b"NTLMSSP\0", 3) + head + struct.pack("<I", 0x20080A05) + b"\0"


class AnonymousLogon:
    """What ``wire_client.Client.session_setup`` takes for a security context."""

    def __init__(self, session_key: bytes = bytes(16)) -> None:
        """``session_key``: MS-NLMP 3.4.5.1 makes it of zeros."""
        self.session_key = session_key
        self._tokens = [NEGOTIATE, authenticate()]

    def step(self, token: bytes | None = None) -> bytes:
        return self._tokens.pop(0)
