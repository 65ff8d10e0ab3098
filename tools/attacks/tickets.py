"""Attacks with tickets on a member of a domain: forged, damaged, stolen and old ones."""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from tools.attacks import raw
from tools.attacks.lab import Target, case
from tools.attacks.raw import Stranger

_MEMBER = """
[domain]
realm = "EXAMPLE.TEST"
workgroup = "EXAMPLE"
machine = "FILES"
keytab = "$FOLDER/domain.keytab"
idmap = "none"
"""
_NEEDS = ("gssapi", "krb5", "impacket")
_SERVER_CHECKSUM, _KDC_CHECKSUM = 6, 7
_DOMAIN_USERS, _DOMAIN_ADMINS = 513, 512


class _Attempt(NamedTuple):
    """A ticket that must be refused."""

    what: str
    token: bytes
    says: str
    """Words of the log line, of which one is enough, parted by a bar."""


@case(config="guest = false\n", sections=_MEMBER, needs=_NEEDS)
async def forged_tickets(target: Target) -> None:
    """Send tickets that are wrong in one way each: key, PAC, signature, groups, user, time, service, encryption."""
    with tempfile.TemporaryDirectory() as folder:
        attempts = list(_attempts(Path(folder)))
    for number, attempt in enumerate(attempts):
        before = target.server.log_size()
        # Each from an address of its own: refused logons slow down the next ones from there.
        taken = await _logs_on(target, attempt.token, f"127.0.2.{number + 1}")
        logged = target.server.log_text(before)
        if not attempt.says:
            if not taken:
                target.fail(f"{attempt.what} is refused, so that the others prove nothing: {logged}")
        elif taken:
            target.fail(f"{attempt.what} is accepted")
        elif not any(words in logged for words in attempt.says.split("|")):
            target.fail(f"the log does not say what is wrong with {attempt.what}: {logged[-400:]!r}")
    target.note(f"{len(attempts)} tickets")


@case(config="guest = false\n", sections=_MEMBER, needs=_NEEDS)
async def stolen_tickets(target: Target) -> None:
    """Send the token of another client's logon once more, from the same address and from another."""
    from tools.attacks.forging import Forged

    with tempfile.TemporaryDirectory() as folder:
        token = Forged(Path(folder)).token()
    if not await _logs_on(target, token, "127.0.2.1"):
        target.fail("the first logon is refused")
    for address in ("127.0.2.1", "127.0.2.2"):
        before = target.server.log_size()
        if await _logs_on(target, token, address):
            target.fail(f"a replayed token logs on from {address}")
        elif "replay" not in target.server.log_text(before):
            target.fail(f"the log does not say that it is a replay: {target.server.log_text(before)[-400:]!r}")


@case(config="guest = false\n", sections=_MEMBER, needs=_NEEDS)
async def many_forged_tickets(target: Target) -> None:
    """Send forged PACs over and over: no memory stays, and an innocent client is served."""
    from tools.attacks.forging import Forged, with_pac

    with tempfile.TemporaryDirectory() as folder:
        ticket = Forged(Path(folder))
    end, count = target.until(), 0
    while time.monotonic() < end:
        token = await asyncio.to_thread(ticket.token, with_pac(_admins))
        if await _logs_on(target, token, f"127.0.3.{count % 250 + 1}"):
            target.fail("a forged ticket is accepted")
        count += 1
    target.note(f"{count} tickets")


async def _logs_on(target: Target, token: bytes, address: str) -> bool:
    """Send a token, and once more where the server answers with an error that allows it. Return whether it logs on."""
    stranger = await Stranger.connect(target.port, address)
    try:
        return raw.status(await stranger.setup(token)) == raw.SUCCESS
    except (OSError, EOFError):
        return False
    finally:
        stranger.close()


def _attempts(folder: Path) -> Iterator[_Attempt]:
    """Iterate over the tickets. The first one is right: the server's key has made it."""
    from tools.attacks import forging
    from tools.attacks.forging import Forged, at_times, for_user, rc4_key, with_pac, without_pac

    hour = timedelta(hours=1)
    own = Forged(folder)
    others = Forged(folder, password="of another service")
    yield _Attempt("a ticket of the server's own key", own.token(), "")
    yield _Attempt("a ticket for another service's key", others.token(), "ntegrity|ecrypt|key")
    yield _Attempt("a PAC that another key has signed", own.token(with_pac(lambda _: others.pac())), "is wrong")
    yield _Attempt("a PAC with Domain Admins added", own.token(with_pac(_admins)), "is wrong")
    yield _Attempt("a PAC without its signature", own.token(with_pac(_unsigned)), "no buffer of type 6")
    for kind in (1, 7, -138, 15, 0):
        made = own.token(with_pac(lambda data, kind=kind: _signed_as(data, kind)))  # type: ignore[misc]
        yield _Attempt(f"a PAC with a signature of type {kind}", made, "malformed PAC|another type than")
    yield _Attempt("a PAC cut short", own.token(with_pac(lambda data: data[:-40])), "malformed PAC|out of range")
    yield _Attempt("a ticket without a PAC", own.token(without_pac), "no PAC")
    other = own.token(for_user("Administrator"), user="Administrator")
    yield _Attempt("the PAC of another user", other, "another user")
    yield _Attempt("another user's authenticator", own.token(user="Administrator"), "match")
    yield _Attempt("an expired ticket", own.token(at_times(-10 * hour, -hour)), "expired")
    yield _Attempt("a ticket of tomorrow", own.token(at_times(24 * hour, 34 * hour)), "not yet valid")
    yield _Attempt("a ticket with RC4", own.token(key=rc4_key()), "key|enctype|ncryption type")
    yield _Attempt("a ticket that says DES", own.token(etype=3), "key|enctype|ncryption type")
    wrong = Forged(folder, password="of another service").token(service="http")
    yield _Attempt("another service's ticket", wrong, "key|ntegrity|ecrypt|No such")
    assert forging.REALM in _MEMBER


def _place(data: bytes, kind: int) -> int:
    """Return where the description of a buffer of the PAC is. [MS-PAC 2.4]"""
    (count,) = struct.unpack_from("<I", data)
    for at in range(8, 8 + 16 * count, 16):
        if struct.unpack_from("<I", data, at)[0] == kind:
            return at
    raise ValueError(f"no buffer of type {kind}")


def _signed_as(data: bytes, kind: int) -> bytes:
    """Give the server's signature another type. [MS-PAC 2.8]"""
    made = bytearray(data)
    (offset,) = struct.unpack_from("<Q", data, _place(data, _SERVER_CHECKSUM) + 8)
    struct.pack_into("<i", made, offset, kind)
    return bytes(made)


def _unsigned(data: bytes) -> bytes:
    made = bytearray(data)
    struct.pack_into("<I", made, _place(data, _SERVER_CHECKSUM), 77)
    return bytes(made)


def _admins(data: bytes) -> bytes:
    """Make the user a member of Domain Admins in place of Domain Users. Attributes follow the RID."""
    users = struct.pack("<II", _DOMAIN_USERS, 7)
    if users not in data:
        raise ValueError("the PAC does not have Domain Users")
    return data.replace(users, struct.pack("<II", _DOMAIN_ADMINS, 7))
