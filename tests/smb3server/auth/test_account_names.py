"""Nobody learns without a password which accounts there are (MS-NLMP 3.2.5.1.2)."""

from __future__ import annotations

import gc
import os
import struct
import sys
from types import FrameType

import pytest

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.wire.status import StatusError
from tools.failover import logon

LONGEST_TURN = 0.1

AV_EOL = bytes(4)
BLOB = b"\1\1" + bytes(26)


def message(user: str, response: bytes, key: bytes = b"", flags: int = 0xA2088205) -> bytes:
    """AUTHENTICATE_MESSAGE (MS-NLMP 2.2.1.3)."""
    fields = body = b""
    for part in (b"", response, b"", user.encode("utf-16-le"), b"", key):
        fields += struct.pack("<HHI", len(part), len(part), 64 + len(body))
        body += part
    return b"NTLMSSP\0\3\0\0\0" + fields + struct.pack("<I", flags) + body


RESPONSES = {
    "well-formed": os.urandom(16) + BLOB + AV_EOL,
    "pairs-do-not-end": os.urandom(16) + BLOB + b"\2\0\xff\xff",
    "no-pairs": os.urandom(16) + BLOB,
    "flags-of-a-wrong-size": os.urandom(16) + BLOB + b"\6\0\2\0\0\0" + AV_EOL,
    "too-short": os.urandom(16) + BLOB[:-1],
    "ntlmv1": os.urandom(24),
    "empty": b"",
    "asks-for-a-mic": os.urandom(16) + BLOB + b"\6\0\4\0\2\0\0\0" + AV_EOL,
}


def answer(user: str, response: bytes, key: bytes, flags: int) -> tuple[int, int]:
    """The status, and the functions that were called until it was known."""
    users = UserDatabase()
    users.add(Account("alice", nt_hash("pw")))
    made = Acceptor(users, "SERVER")
    made.step(logon.NEGOTIATE)
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    token = message(user, response, key, flags)
    status = 0
    gc.disable()
    sys.setprofile(profile)
    try:
        made.step(token)
    except StatusError as error:
        status = error.status
    finally:
        sys.setprofile(None)
        gc.enable()
    assert made.identity is None
    return status, count


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(3)], ids=["no-key", "key", "short-key"])
@pytest.mark.parametrize("kind", RESPONSES)
def test_accounts_and_strangers_get_the_same_answer_for_the_same_work(kind: str, key: bytes) -> None:
    flags = 0xA2088205 | (0x40000010 if key else 0)
    answer("alice", RESPONSES[kind], key, flags)  # whatever is done once only
    there = answer("alice", RESPONSES[kind], key, flags)
    assert there[0] != 0
    # Of the same length: names are upper-cased and hashed.
    other = answer("carol", RESPONSES[kind], key, flags)
    assert other[0] == there[0]
    assert abs(other[1] - there[1]) <= 2
