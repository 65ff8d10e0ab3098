"""What the operations of SAMR share: the client, its handles, and what it may do. [MS-SAMR 3.1.1.8]"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from impacket.dcerpc.v5.dtypes import ULONG
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.access.descriptor import Sid
from smb3server.auth.accounts import BUILTIN, DOMAIN_USERS, DOMAIN_USERS_NAME, WELL_KNOWN
from smb3server.auth.directory import Use
from smb3server.auth.users import Account
from smb3server.rpc.ndr import Handles
from smb3server.state.objects import Session
from smb3server.state.ports import AccountKeeper, AccountNotKept
from smb3server.state.server_state import ServerState
from smb3server.wire.status import NtStatus

log = logging.getLogger(__name__)


class ServerObject(NamedTuple):
    """What a handle of the server stands for."""

    name: str = "server"


class DomainObject(NamedTuple):
    """What a handle of a domain stands for."""

    sid: Sid


class UserObject(NamedTuple):
    """What a handle of an account stands for."""

    rid: int
    name: str


class GroupObject(NamedTuple):
    """What a handle of the group of all accounts stands for."""

    name: str = DOMAIN_USERS_NAME


class AliasObject(NamedTuple):
    """What a handle of an alias stands for."""

    sid: Sid
    name: str


def put_time(field: Any, ticks: int) -> None:
    """Set an OLD_LARGE_INTEGER. [MS-SAMR 2.2.2.2]"""
    field["LowPart"], field["HighPart"] = ticks & 0xFFFFFFFF, ticks >> 32


class StatusResponse(NDRCALL):  # type: ignore[misc]
    """An answer that has a status and nothing else."""

    structure = (("ErrorCode", ULONG),)


def answer_status(status: int) -> StatusResponse:
    """Return an answer that has a status and nothing else."""
    answer = StatusResponse()
    answer["ErrorCode"] = status
    return answer


class Context:
    """One client of SAMR."""

    def __init__(self, server: ServerState, session: Session) -> None:
        self.server = server
        self.session = session
        self.accounts = server.accounts
        self.handles = Handles()

    @property
    def address(self) -> str:
        """The client's address."""
        return self.session.connection.client_name

    @property
    def session_key(self) -> bytes:
        """The 16 bytes that protect passwords: the SMB session's key, even if a bind protects calls with its own.
        [MS-SAMR 3.1.2.4, MS-SMB2 3.3.4.5]"""
        return (self.session.application_key or self.session.session_key)[:16]

    @property
    def administers(self) -> bool:
        """Whether the client may change the accounts of others."""
        return self.server.accounts.administers(self.session.identity)

    def rid_of(self, name: str) -> int:
        """Return the RID of an account in the domain."""
        return _rid(self.accounts.account_sid(name))

    def account(self, user: UserObject) -> Account | None:
        """Return the account of a handle, or None if it is gone."""
        return self.accounts.find(user.name)

    def entries(self, domain: DomainObject) -> list[tuple[int, str, Use]]:
        """Return RID, name and kind of everything in a domain."""
        if domain.sid == BUILTIN:
            return [
                (known.sid.sub_authorities[1], known.name, Use.ALIAS)
                for known in WELL_KNOWN
                if known.use is Use.ALIAS and known.sid.sub_authorities[0] == 32
            ]
        users = [(rid, account.name, Use.USER) for rid, account in self.accounts.users()]
        users.append((DOMAIN_USERS, DOMAIN_USERS_NAME, Use.GROUP))
        return users + [(_rid(self.accounts.group_sid(name)), name, Use.ALIAS) for name in self.accounts.groups]

    def keep(self, what: str, change: Callable[[AccountKeeper], None]) -> NtStatus:
        """Change accounts, and return the status. ``what`` says for the log what is changed."""
        keeper = self.server.account_keeper
        if keeper is None:
            return NtStatus.ACCESS_DENIED
        try:
            change(keeper)
        except AccountNotKept as error:
            log.warning("%s: %s, asked by %s: refused: %s", self.address, what, self.session.identity, error)
            return NtStatus.ACCESS_DENIED
        log.info("%s: %s, asked by %s: done", self.address, what, self.session.identity)
        return NtStatus.SUCCESS


def _rid(sid: Sid) -> int:
    return sid.sub_authorities[-1]
