"""DCE/RPC over TCP without sockets: PDUs for an association, and what it answers."""

from __future__ import annotations

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.rpc import dcerpc
from smb3server.rpc.association import Association, AssociationGroups
from smb3server.rpc.dcerpc import (
    COMMON,
    CONTEXT_ITEM,
    FIRST_FRAGMENT,
    LAST_FRAGMENT,
    BindBody,
    CommonHeader,
    ContextItem,
    Deferred,
    Interface,
    RequestBody,
)
from smb3server.rpc.security import AUTH_TRAILER

UUID = bytes(range(16))


SINGLE = FIRST_FRAGMENT | LAST_FRAGMENT


class Service:
    """Opnum 0 echoes, 1 waits, 2 fails in an unexpected way, 3 says who calls."""

    def __init__(self) -> None:
        self.waiting: list[Deferred] = []
        self.abandoned = 0
        self.groups = AssociationGroups()
        users = UserDatabase()
        users.add(Account("u", nt_hash("pw")))
        self.users = users

    def association(self) -> Association:
        return Association("4711", self.interfaces, lambda: Acceptor(self.users, "S"), self.groups)

    def interfaces(self, association: Association) -> list[Interface]:
        def caller(stub: bytes) -> bytes:
            security = association.caller
            return str(security.identity if security is not None else None).encode()

        return [Interface(UUID, 1, {0: lambda stub: stub, 1: self._wait, 2: self._fail, 3: caller})]

    def _wait(self, stub: bytes) -> Deferred:
        deferred = Deferred(self._abandon)
        self.waiting.append(deferred)
        return deferred

    def _abandon(self) -> None:
        self.abandoned += 1

    @staticmethod
    def _fail(stub: bytes) -> bytes:
        raise KeyError("a bug")


def pdu(kind: int, body: bytes, call_id: int = 1, flags: int = SINGLE, auth: bytes = b"") -> bytes:
    """``auth``: trailer and verifier."""
    length = COMMON.size + len(body) + len(auth)
    auth_length = len(auth) - AUTH_TRAILER.size if auth else 0
    return COMMON.pack(CommonHeader(5, 0, kind, flags, fragment_length=length, auth_length=auth_length,
                                    call_id=call_id)) + body + auth  # fmt: skip


def bind_body(*contexts: tuple[int, bytes, bytes], group: int = 0, receive: int = 4280) -> bytes:
    body = dcerpc.BIND_BODY.pack(BindBody(4280, receive, group)) + bytes((len(contexts), 0, 0, 0))
    for number, interface, transfer in contexts:
        body += CONTEXT_ITEM.pack(ContextItem(number, 1, 0, interface, 1, 0)) + transfer
    return body


def request(opnum: int, stub: bytes = b"", context: int = 0) -> bytes:
    return dcerpc.REQUEST_BODY.pack(RequestBody(len(stub), context, opnum)) + stub
