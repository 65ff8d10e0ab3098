"""Names of users and groups, and their SIDs, as clients look them up. [MS-LSAT 3.1.1.1, MS-SAMR 3.1.1]

Every account has a SID in the server's own domain, S-1-5-21-x-y-z-RID. The RID is computed from the name. The guest has
such a SID as well. An account with a POSIX user of its own is also S-1-22-1-uid: looking up its name returns this SID,
and files that it creates are owned by it. Users and groups of the host are S-1-22-1-uid and S-1-22-2-gid. A Kerberos
principal without an account is S-1-5-21-a-b-c-d. All four numbers are computed from its name and realm, so that no
client can choose a name that has the SID of another.

Groups of the configuration are aliases of the domain. Their RIDs are computed from their names, too. Administrators are
the members of BUILTIN\\Administrators.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import hashlib
import pwd
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from smb3server.access.descriptor import ANONYMOUS, AUTHENTICATED_USERS, Sid
from smb3server.access.identity import HOST_GROUP
from smb3server.access.privileges import NO_PRIVILEGE, Privilege
from smb3server.auth.directory import Known, Use
from smb3server.auth.groups import Groups
from smb3server.backends.base import User

if TYPE_CHECKING:
    from smb3server.access.identity import Identity
    from smb3server.access.policies import Policies
    from smb3server.auth.tickets import Ticket
    from smb3server.auth.users import Account, Principals, UserDatabase

UNIX_USER, UNIX_GROUP = "Unix User", "Unix Group"
_NT, _UNIX = 5, 22
_FIRST_RID, _RIDS = 1000, 1 << 30
_GUEST, _GUEST_RID = "Guest", 501
"""Name of the guest. Its RID is well-known (MS-DTYP 2.4.2.4)."""
_MAX_PRINCIPALS = 1024


DOMAIN_USERS, DOMAIN_USERS_NAME = 513, "None"
"""The primary group of every account, under the name that it has on Windows outside of a domain. [MS-SAMR 3.1.1.6]"""
ADMINISTRATORS, _USERS, _GUESTS, _BACKUP_OPERATORS = 544, 545, 546, 551
"""RIDs of aliases in BUILTIN. [MS-DTYP 2.4.2.4]"""


class Lists(Protocol):
    """What a configuration says about groups."""

    @property
    def groups(self) -> Groups: ...

    @property
    def admins(self) -> frozenset[str]:
        """Users who may change the server from afar."""
        ...

    @property
    def security_operators(self) -> frozenset[str] | None:
        """Users with SeSecurityPrivilege. None means ``admins``."""
        ...

    @property
    def backup_operators(self) -> frozenset[str]:
        """Users with SeBackupPrivilege and SeRestorePrivilege."""
        ...


def _well_known() -> list[Known]:
    authority = "NT AUTHORITY"
    found = [
        Known(Sid(1, (0,)), Use.WELL_KNOWN, "", "Everyone"),
        Known(Sid(3, (0,)), Use.WELL_KNOWN, "", "CREATOR OWNER"),
        Known(Sid(3, (1,)), Use.WELL_KNOWN, "", "CREATOR GROUP"),
        Known(Sid(3, (4,)), Use.WELL_KNOWN, "", "OWNER RIGHTS"),
    ]
    names = {2: "NETWORK", 4: "INTERACTIVE", 7: "ANONYMOUS LOGON", 10: "SELF", 11: "Authenticated Users"}
    names |= {18: "SYSTEM", 19: "LOCAL SERVICE", 20: "NETWORK SERVICE"}
    found += [Known(Sid(_NT, (number,)), Use.WELL_KNOWN, authority, name) for number, name in names.items()]
    aliases = {544: "Administrators", 545: "Users", 546: "Guests", 547: "Power Users", 551: "Backup Operators"}
    found += [Known(Sid(_NT, (32, rid)), Use.ALIAS, "BUILTIN", name) for rid, name in aliases.items()]
    found.append(Known(Sid(_NT, (32,)), Use.DOMAIN, "BUILTIN", ""))
    return found


@functools.lru_cache(maxsize=65536)
def rid(name: str) -> int:
    """Return the RID of an account, which depends only on its name.

    Two names may have the same RID, but not in one configuration.
    """
    return _FIRST_RID + zlib.crc32(name.casefold().encode("utf-8", "surrogatepass")) % _RIDS


def group_rid(name: str) -> int:
    """Return the RID of a group, which differs from that of an account of the same name."""
    return rid(f"@{name}")


WELL_KNOWN = _well_known()
BUILTIN = Sid(_NT, (32,))
_NO_GROUPS = Groups()
_BY_SID = {entry.sid: entry for entry in WELL_KNOWN}
_BY_NAME = {entry.name.casefold(): entry for entry in WELL_KNOWN if entry.name}


def _builtin(number: int) -> Sid:
    return Sid(_NT, (32, number))


class _Index:
    """The accounts and groups of one moment, by what look-ups ask for: a client may ask for thousands at once."""

    def __init__(self, users: UserDatabase, groups: Groups) -> None:
        self._users = users
        self.accounts = sorted(users, key=lambda account: account.name.casefold())
        """Ordered by name."""
        self.by_rid = {rid(account.name): account for account in reversed(self.accounts)}
        self.by_uid: dict[int, Account] = {}
        self._by_gid: dict[int, list[Account]] = {}
        for account in self.accounts:
            if account.user is not None:
                self.by_uid.setdefault(account.user.uid, account)
                for gid in {account.user.gid, *account.user.groups}:
                    self._by_gid.setdefault(gid, []).append(account)
        self._groups = groups
        self.groups = {group_rid(name): name for name in groups}
        self._members: dict[str, list[Account]] = {}

    def members(self, group: str) -> list[Account]:
        """Return the members of a group that have accounts, ordered by name."""
        known = self._members.get(group)
        if known is None:
            names = self._groups.members(group)
            found: dict[str, Account] = {}
            for entry in names:
                gid = entry.removeprefix(HOST_GROUP)
                named = self._users.find(entry)
                for account in self._by_gid.get(int(gid), ()) if gid != entry else (named,) if named else ():
                    if account.identity.is_on(names):
                        found[account.name.casefold()] = account
            known = self._members[group] = [found[name] for name in sorted(found)]
        return known


class Accounts:
    """The ``Directory`` of one server's own accounts. Later changes of ``users`` are seen."""

    def __init__(
        self, users: UserDatabase, domain: str, domain_seed: bytes, *, guests_may_ask: bool, lists: Lists | None = None
    ) -> None:
        """Make look-ups for the server named ``domain``.

        ``domain_seed`` has 12 bytes. Later changes of ``lists`` are seen.
        None means that there are no groups. ``guests_may_ask`` lets guests and anonymous users look up names.
        """
        self._users = users
        self._lists = lists
        self.domain = domain
        self.domain_seed = domain_seed
        """12 bytes from which the SID of the domain is made."""
        self.guests_may_ask = guests_may_ask
        self._indexed: tuple[int, Groups, _Index] | None = None
        """What the latest index was made from, and the index."""
        self._principals: dict[Sid, Identity] = {}
        """Principals without an account that have logged on, the latest last."""
        self.policies: Policies | None = None
        """Central access policies are a domain's."""
        self.principals: Principals | None = None
        """Maps Kerberos principals to accounts. None means that tickets are not accepted."""
        self.find = users.find
        self.prove = users.prove
        self.judges = users.judges
        self.check_password = users.check_password

    def identity_of(self, principal: str, ticket: Ticket | None) -> Identity:
        """Return the identity of a principal. Raises ``ValueError`` if it may not log on."""
        if self.principals is None:
            raise ValueError("this server does not use Kerberos")
        return self.principals.identity_of(principal)

    def today(self, identity: Identity) -> Identity:
        """Return the identity that a user has now. Raises ``ValueError`` if it may not log on any longer."""
        if identity.member is not None:
            raise ValueError("this server belongs to no domain")
        if not identity.domain:
            account = self.find(identity.name)
            # A password that must be changed, or a ticket instead of a password, counts at logons only.
            if account is None or account.refusal(by_password=False) is not None:
                raise ValueError("there is no such user, or it may not log on")
            return identity if account.user == identity.user else replace(identity, user=account.user)
        found = self.identity_of(f"{identity.name}@{identity.domain}", None)
        if found.owner != identity.owner:
            raise ValueError("the principal has an account by now, which is another user")
        return found

    def learn(self, sids: Collection[Sid] = (), names: Collection[str] = ()) -> None:
        """Ask nobody: all names of this server are known."""

    @property
    def administrators(self) -> frozenset[str]:
        """The list of the configuration's administrators."""
        return self._lists.admins if self._lists is not None else frozenset()

    def administers(self, identity: Identity | None) -> bool:
        """Return whether a user is one of the configuration's administrators."""
        return self._lists is not None and identity is not None and identity.is_on(self._lists.admins)

    def privileges(self, identity: Identity | None) -> Privilege:
        """Return the privileges that the configuration gives to a user. [MS-LSAD 3.1.1.2.1]"""
        lists = self._lists
        if lists is None or identity is None:
            return NO_PRIVILEGE
        found = Privilege.MANAGE_VOLUME if identity.is_on(lists.admins) else NO_PRIVILEGE
        security = lists.admins if lists.security_operators is None else lists.security_operators
        if identity.is_on(security):
            found |= Privilege.SECURITY
        if identity.is_on(lists.backup_operators):
            found |= Privilege.BACKUP | Privilege.RESTORE
        return found

    def may_be_asked_by(self, identity: Identity | None) -> bool:
        """Return whether a user may look up names of accounts and of the host's users.

        Guests and anonymous users may not, unless the settings allow it.
        """
        proven = identity is not None and not identity.guest and not identity.anonymous
        return proven or self.guests_may_ask

    @property
    def domain_sid(self) -> Sid:
        """SID of the server's own domain."""
        return Sid(_NT, (21, *struct.unpack("<III", self.domain_seed)))

    def account_sid(self, name: str) -> Sid:
        """Return the SID of an account in the server's own domain."""
        return self._of_domain(rid(name))

    def _of_domain(self, number: int) -> Sid:
        domain = self.domain_sid
        return domain._replace(sub_authorities=(*domain.sub_authorities, number))

    def identity_sid(self, identity: Identity) -> Sid:
        """Return the SID of a session's user itself, whatever user of the host it acts as."""
        if identity.anonymous:
            return ANONYMOUS
        if identity.guest:
            return self._of_domain(_GUEST_RID)
        if not identity.domain:
            return self.account_sid(identity.name)
        digest = hashlib.sha256(f"{identity.name}@{identity.domain}".encode("utf-8", "surrogatepass")).digest()
        sid = Sid(_NT, (21, *struct.unpack_from("<IIII", digest)))
        if sid not in self._principals:
            if len(self._principals) >= _MAX_PRINCIPALS:
                del self._principals[next(iter(self._principals))]
            self._principals[sid] = identity
        return sid

    def sid_of(self, account: Account) -> Sid:
        """Return the SID of the account's own user of the host, or of the account if it has no such user."""
        return Sid(_UNIX, (1, account.user.uid)) if account.user is not None else self.account_sid(account.name)

    def host_users(self, sid: Sid) -> list[User]:
        """Return the users of the host that an account of the domain, or the members of one of its groups, act as."""
        number = self._rid_of(sid)
        if number is None:
            return []
        group = self._group(number)
        if group is not None:
            return [account.user for account in self._members(group) if account.user is not None]
        account = self._index().by_rid.get(number)
        return [account.user] if account is not None and account.user is not None else []

    def on_host(self, sid: Sid) -> list[Sid]:
        """Return the SIDs of the host's users that an account, or the members of a group, act as."""
        return [Sid(_UNIX, (1, user.uid)) for user in self.host_users(sid)]

    def owned_by(self, principal: str) -> bool:
        """Return whether an account names this Kerberos principal."""
        return self._users.of_principal(principal) is not None

    def _index(self) -> _Index:
        version, groups, known = self._users.version, self.groups, self._indexed
        if known is None or known[0] != version or known[1] is not groups:
            known = self._indexed = (version, groups, _Index(self._users, groups))
        return known[2]

    # Groups

    @property
    def groups(self) -> Groups:
        """The groups of the configuration."""
        return self._lists.groups if self._lists is not None else _NO_GROUPS

    def memberships(self, identity: Identity) -> frozenset[Sid]:
        """Return the SIDs of the groups that a user is in, besides those that every user is in."""
        if identity.guest or identity.anonymous:
            return frozenset()
        found = {self.group_sid(name) for name in self.groups.of(identity)}
        if self.administers(identity):
            found.add(_builtin(ADMINISTRATORS))
        if self.privileges(identity) & Privilege.BACKUP:
            found.add(_builtin(_BACKUP_OPERATORS))
        return frozenset(found)

    def group_sid(self, name: str) -> Sid:
        """Return the SID of a group of the configuration."""
        return self._of_domain(group_rid(name))

    def members(self, alias: Sid) -> list[Sid] | None:
        """Return the members of a group, or None if there is no such group. [MS-SAMR 3.1.5.8.3]"""
        if alias == _builtin(_USERS):
            return [AUTHENTICATED_USERS]
        if alias == _builtin(_GUESTS):
            return [self._of_domain(_GUEST_RID)]
        if alias == _builtin(ADMINISTRATORS):
            return [self.account_sid(account.name) for _, account in self.users() if self.administers(account.identity)]
        if alias == _builtin(_BACKUP_OPERATORS):
            accounts = (account for _, account in self.users())
            return [self.account_sid(one.name) for one in accounts if self.privileges(one.identity) & Privilege.BACKUP]
        number = self._rid_of(alias)
        group = self._group(number) if number is not None else None
        if group is not None:
            return [self.account_sid(account.name) for account in self._members(group)]
        known = _BY_SID.get(alias)
        return [] if known is not None and known.use is Use.ALIAS else None

    def _members(self, group: str) -> list[Account]:
        return self._index().members(group)

    def _group(self, number: int) -> str | None:
        return self._index().groups.get(number)

    def _rid_of(self, sid: Sid) -> int | None:
        """Return the RID of a SID of this domain."""
        domain, subs = self.domain_sid.sub_authorities, sid.sub_authorities
        return subs[-1] if sid.authority == _NT and len(subs) == len(domain) + 1 and subs[:-1] == domain else None

    def users(self) -> Iterator[tuple[int, Account]]:
        """Iterate over RIDs and accounts, ordered by name."""
        for account in self._index().accounts:
            yield rid(account.name), account

    def by_sid(self, sid: Sid) -> Known | None:
        """Return the name of a SID, or None if it is not known."""
        found = _BY_SID.get(sid)
        if found is not None:
            return found
        domain = self.domain_sid
        if sid == domain:
            return Known(sid, Use.DOMAIN, self.domain, "")
        subs = sid.sub_authorities
        if sid.authority == _NT and subs[:4] == domain.sub_authorities and len(subs) == 5:
            if subs[4] == _GUEST_RID:
                return Known(sid, Use.USER, self.domain, _GUEST)
            if subs[4] == DOMAIN_USERS:
                return Known(sid, Use.GROUP, self.domain, DOMAIN_USERS_NAME)
            group = self._group(subs[4])
            if group is not None:
                return Known(sid, Use.ALIAS, self.domain, group)
            account = self._index().by_rid.get(subs[4])
            return self._known(account, sid) if account is not None else None
        if sid in self._principals:
            identity = self._principals[sid]
            return Known(sid, Use.USER, identity.domain, identity.name)
        if sid.authority == _UNIX and len(subs) == 2:
            return self._unix(sid, *subs)
        return None

    def by_name(self, text: str) -> Known | None:
        """Look up ``name``, ``DOMAIN\\name`` or ``name@domain``, or a domain by its own name. Returns None if it is not
        known."""
        domain, _, name = text.rpartition("\\")
        if not domain and "@" in name:
            name, _, domain = name.rpartition("@")
        folded, domain = name.casefold(), domain.casefold()
        if not domain and folded in (self.domain.casefold(), "builtin"):
            return self.by_sid(BUILTIN if folded == "builtin" else self.domain_sid)
        if domain in ("", "nt authority", "builtin") and folded in _BY_NAME:
            return _BY_NAME[folded]
        if domain in ("", self.domain.casefold(), "workgroup"):
            account = self._users.find(name)
            if account is not None:
                return self._known(account, self.sid_of(account))
            group = self.groups.find(name)
            if group is not None:
                return Known(self.group_sid(group), Use.ALIAS, self.domain, group)
            for known, number in ((_GUEST, _GUEST_RID), (DOMAIN_USERS_NAME, DOMAIN_USERS)):
                if folded == known.casefold():
                    return self.by_sid(self._of_domain(number))
        return self._host_name(domain, name)

    def _known(self, account: Account, sid: Sid) -> Known:
        return Known(sid, Use.USER, self.domain, account.name)

    def _unix(self, sid: Sid, kind: int, number: int) -> Known | None:
        if kind == 1:
            account = self._index().by_uid.get(number)
            if account is not None:
                return self._known(account, sid)
            with contextlib.suppress(KeyError, OverflowError):
                return Known(sid, Use.USER, UNIX_USER, pwd.getpwuid(number).pw_name)
        elif kind == 2:
            with contextlib.suppress(KeyError, OverflowError):
                return Known(sid, Use.GROUP, UNIX_GROUP, grp.getgrgid(number).gr_name)
        return None

    @staticmethod
    def _host_name(domain: str, name: str) -> Known | None:
        # Not in the specification: names of the host need their domain, because they are not accounts of the server.
        with contextlib.suppress(KeyError, ValueError):
            if domain == UNIX_USER.casefold():
                return Known(Sid(_UNIX, (1, pwd.getpwnam(name).pw_uid)), Use.USER, UNIX_USER, name)
            if domain == UNIX_GROUP.casefold():
                return Known(Sid(_UNIX, (2, grp.getgrnam(name).gr_gid)), Use.GROUP, UNIX_GROUP, name)
        return None
