"""Tokens of offloaded data transfers: what one stands for, and why nobody can make one. [MS-FSCC 2.1.11]

A token says in its TokenId all that the server has to know of it, so the server keeps nothing for it. A message
authentication code with a secret of this server covers all of its 512 bytes.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple

from smb3server.backends.base import DataVersion
from smb3server.wire.offload import TOKEN, TOKEN_ID_LENGTH, Token
from smbdirect.codec import Codec
from smbdirect.fields import Int64sl, Int64ul

DEFAULT_LIFE = 60.0
"""Seconds, for a client that leaves the choice to the server."""
LONGEST_LIFE = 600.0
_OUR_TYPE = 0x534D4233
"""TokenType: any value below 0xFFFF0001 is free for vendors."""
_CODE_LENGTH = 32


class Grant(NamedTuple):
    """The data that a token stands for: a range of the file of one open, as it was when the token was made."""

    open_id: Annotated[int, Int64ul]
    """FileId.Persistent of the open that it was read through."""
    offset: Annotated[int, Int64ul]
    length: Annotated[int, Int64ul]
    """Bytes. The last sector may reach beyond the end of file."""
    changed: Annotated[int, Int64sl]
    size: Annotated[int, Int64ul]
    expires: Annotated[int, Int64ul] = 0
    """Nanoseconds of the monotonic clock. The table sets it."""

    @property
    def version(self) -> DataVersion:
        """What the file had when the token was made."""
        return DataVersion(self.changed, self.size)


_GRANT = Codec(Grant)
_PADDING = bytes(TOKEN_ID_LENGTH - _CODE_LENGTH - _GRANT.size)


class OffloadTokens:
    """Makes tokens, and reads those that it made. A restart of the server ends all tokens."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._secret = secrets.token_bytes(_CODE_LENGTH)
        self._clock = clock

    def _pack(self, grant: Grant, code: bytes) -> bytes:
        return TOKEN.pack(Token(_OUR_TYPE, token_id=_GRANT.pack(grant) + _PADDING + code))

    def _signed(self, grant: Grant) -> bytes:
        unsigned = self._pack(grant, bytes(_CODE_LENGTH))
        return self._pack(grant, hmac.digest(self._secret, unsigned, "sha256"))

    def make(self, grant: Grant, milliseconds: int) -> bytes:
        """Return a token that is valid for some time, and at most ``LONGEST_LIFE``. 0 means the default."""
        life = min(milliseconds / 1000 or DEFAULT_LIFE, LONGEST_LIFE)
        return self._signed(grant._replace(expires=self._clock() + int(life * 1e9)))

    def read(self, token: bytes) -> Grant | None:
        """Return what a token stands for. None: this server did not make it as it is, or it has expired."""
        grant = _GRANT.unpack(TOKEN.unpack(token).token_id)
        if not hmac.compare_digest(self._signed(grant), token) or self._clock() >= grant.expires:
            return None
        return grant
