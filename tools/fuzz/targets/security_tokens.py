"""SPNEGO and NTLM: the decoders alone, and a whole logon. [RFC 4178 4.2, MS-NLMP 2.2]"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import spnego

from smb3server.auth import ntlm_messages, spnego_tokens
from smb3server.auth.acceptor import Acceptor
from smb3server.wire.status import StatusError
from smbdirect.errors import DecodeError
from tools.fuzz import framed
from tools.fuzz.in_memory import USER
from tools.fuzz.services import PASSWORD, users
from tools.fuzz.target import Target, Wrong

USERS = users()
DECODERS: tuple[Callable[[bytes], object], ...] = (
    spnego_tokens.parse_init,
    spnego_tokens.parse_resp,
    spnego_tokens.gss_mechanism,
    ntlm_messages.parse_negotiate,
    ntlm_messages.parse_authenticate,
)


def _logon(tokens: list[bytes]) -> None:
    acceptor = Acceptor(USERS, "SERVER", allow_guest=False)
    for token in tokens:
        acceptor.step(token)
        if acceptor.identity is not None:
            raise Wrong(f"logged on as {acceptor.identity} without knowing the challenge")


def _run(data: bytes) -> None:
    if not data:
        return
    if data[0] < len(DECODERS):
        DECODERS[data[0]](data[1:])
    else:
        _logon(framed.split(data[1:]))


def _seeds() -> Iterator[bytes]:
    for protocol in ("ntlm", "negotiate"):
        client = spnego.client(USER, PASSWORD, protocol=protocol, hostname="SERVER", service="cifs")
        acceptor = Acceptor(USERS, "SERVER")
        tokens = [client.step() or b""]
        while not client.complete and len(tokens) < 5:
            tokens.append(client.step(acceptor.step(tokens[-1])) or b"")
        for number in range(len(DECODERS) + 2):
            head = bytes((number,))
            yield head + framed.join(tokens)
            yield from (head + token for token in tokens)


TARGET = Target(_run, _seeds, declared=(ValueError, DecodeError, StatusError))
