"""The users of a member server: its own accounts, and those of its domain. [MS-APDS 3.1.5, MS-LSAT 3.1.1.1]

Accounts of the server come first, unless a client names the domain. The principals of the domain's realm are users of
the domain, except where an account names the principal.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from smb3server.access.descriptor import Sid
from smb3server.access.identity import Identity, Member
from smb3server.access.policies import Policies
from smb3server.access.posix import group_sid, user_sid
from smb3server.auth.accounts import ADMINISTRATORS, BUILTIN, Accounts
from smb3server.auth.directory import Known, Proven, Use
from smb3server.auth.groups import GROUP, Groups
from smb3server.auth.tickets import WIN2K_PAC, Ticket
from smb3server.auth.users import LogonError
from smb3server.backends.base import User
from smb3server.domain.ids import IdMap
from smb3server.domain.names import Names
from smb3server.domain.pac import domain_user
from smb3server.domain.questions import Questions, TooManyQuestions
from smb3server.domain.user import DomainUser, NoController, PassThrough
from smb3server.domain.validation import of_a_domain
from smb3server.settings.domain import DomainConfig
from smb3server.wire.status import NtStatus

log = logging.getLogger(__name__)

_ADMINISTRATORS = BUILTIN._replace(sub_authorities=(*BUILTIN.sub_authorities, ADMINISTRATORS))
_MAX_DOMAINS = 256
_NT = 5
_FIRST_RID = 1000
"""Lower RIDs are those of every domain, as of Domain Admins."""
_FOREST_LIFETIME = 3600.0
"""Seconds for which the list of the forest's domains is believed."""
_PAUSE = 15.0
"""Seconds for which no names are looked up after no controller has answered: each look-up keeps a thread."""


class _Proven(NamedTuple):
    """A user of the domain. A controller judges whether the user may log on."""

    identity: Identity

    def refusal(self) -> NtStatus | None:
        return None


class DomainDirectory:
    """The ``Directory`` of a member server."""

    def __init__(
        self,
        local: Accounts,
        config: DomainConfig,
        names: Names,
        questions: Questions,
        ids: IdMap,
        *,
        listed: Callable[[], Iterable[str]],
        acts: Callable[[], bool],
        pass_through: PassThrough | None = None,
        policies: Policies | None = None,
    ) -> None:
        """Add the domain of ``config`` to the ``local`` accounts.

        ``listed`` returns the entries of all lists of users that are in force. ``acts`` says whether the server may act
        as other users of the host. ``pass_through`` has passwords verified; None means that users of the domain need
        tickets. ``policies`` are the domain's."""
        self.policies = policies
        self._local = local
        self._config = config
        self._names = names
        self._questions = questions
        self._listed = listed
        self._acts = acts if config.id_mapping != "none" else lambda: False
        self._pass_through = pass_through
        self._ids = ids
        self._realms: OrderedDict[str, str] = OrderedDict()
        """Realms of the domains whose users have logged on, by NetBIOS name."""
        self._silent_until = 0.0
        self._forest: frozenset[Sid] = frozenset()
        """Domains of the forest that the server's domain is in, as far as they are known."""
        self._forest_until = 0.0
        self.find = local.find
        self.check_password = local.check_password
        self.administers = local.administers
        self.privileges = local.privileges
        self.may_be_asked_by = local.may_be_asked_by
        self.users = local.users
        self.account_sid = local.account_sid
        self.group_sid = local.group_sid
        self.members = local.members

    @property
    def domain(self) -> str:
        """Name of the domain that has the server's own accounts."""
        return self._local.domain

    @property
    def domain_sid(self) -> Sid:
        return self._local.domain_sid

    @property
    def groups(self) -> Groups:
        return self._local.groups

    # Logons

    def identity_of(self, principal: str, ticket: Ticket | None) -> Identity:
        """Return the identity of a principal, as the PAC of its ticket describes it. [MS-KILE 3.4.5.3]"""
        if self._local.owned_by(principal):
            return self._local.identity_of(principal, ticket)
        if ticket is None:
            raise ValueError("the ticket is encrypted in a way in which its PAC cannot be read")
        if ticket.realm != self._config.realm and ticket.ignorable(WIN2K_PAC) is None:
            # A realm that is no domain.
            return self._local.identity_of(principal, ticket)
        user = domain_user(ticket)
        key = "groups", user.sid
        identity = self._identity(user, key)
        self._questions.forget(key)
        return identity

    def judges(self, name: str, domain: str) -> bool:
        """Return whether an account of the server has the name, or a controller is asked."""
        return not self._is_local(name, domain) or self._local.judges(name, domain)

    def _is_local(self, name: str, domain: str) -> bool:
        """Return whether a name is that of an account of this server.

        Clients name a domain of their own where their user has named none. So an account of the name wins, unless the
        client has named the domain of the server."""
        if self._pass_through is None or domain.casefold() in (".", self.domain.casefold()):
            return True
        of_ours = domain.casefold() in (self._config.workgroup.casefold(), self._config.realm.casefold())
        return not of_ours and self._local.judges(name, domain)

    def prove(self, name: str, domain: str, challenge: bytes, response: bytes) -> tuple[Proven, bytes]:
        """Verify an NTLMv2 response, or have a controller verify it. [MS-APDS 3.1.5.1]"""
        pass_through = self._pass_through
        if pass_through is None or self._is_local(name, domain):
            return self._local.prove(name, domain, challenge, response)
        key = "password", name, domain, challenge, response
        try:
            user = self._questions.ask(key, lambda: pass_through.validate(name, domain, "", challenge, b"", response))
        except (NoController, TooManyQuestions) as error:
            self._questions.forget(key)
            raise LogonError(str(error), NtStatus.NO_LOGON_SERVERS, "no_controller") from error
        except LogonError as error:
            self._questions.forget(key)
            if error.status in (NtStatus.WRONG_PASSWORD, NtStatus.NO_SUCH_USER):
                # Which of the two it is, clients must not learn. As LOGON_FAILURE it counts as a guess.
                raise LogonError(error.reason.text, code=error.reason.code) from error
            raise
        if user.guest:
            self._questions.forget(key)
            raise LogonError("the controller lets the user in as a guest, which is refused", code="guest")
        groups = "groups", user.sid
        identity = self._identity(user, groups)
        self._questions.forget(key)
        self._questions.forget(groups)
        return _Proven(identity), user.session_key

    def _identity(self, user: DomainUser, key: tuple[str, Sid]) -> Identity:
        """Return the identity of a user who has logged on.

        Raises ``LogonDelayed`` while a controller is asked for the SIDs of groups that lists of users name, and for
        numbers. Raises ``LogonError`` if none has ever said them: a list could be one of those who may less."""
        user = self._of_its_domain(user)
        foreign = [user.domain] if self._pass_through is not None and not self._is_own(user) else []
        unsure = self._names.unsure_names([*self._listed_groups(), *foreign])
        numbered = [user.sid, user.primary_group, *user.groups] if self._acts() else []
        unsure_ids = self._ids.unsure(numbered)
        unsure_forest = bool(foreign) and time.monotonic() >= self._forest_until
        if unsure or unsure_ids or unsure_forest:
            try:
                self._questions.ask(key, lambda: self._ask(unsure, unsure_ids, unsure_forest))
            except (NoController, TooManyQuestions) as error:
                self._questions.forget(key)
                if any(not self._names.has_asked(name) for name in unsure):
                    what = "the user's domain and the groups that lists of users name are not known"
                    raise _no_controller(what, error) from error
                if any(not self._ids.has_asked(sid) for sid in numbered):
                    raise _no_controller(f"the numbers of {user.sid} on this host are not known", error) from error
        for name in foreign:
            known = self._names.by_name(name)
            if known is not None and known.sid != _domain_of(user.sid):
                raise LogonError(
                    f"the user {user.sid} is given out as one of {name}, which is {known.sid}", code="domain"
                )
        self._names.remember(Known(user.sid, Use.USER, user.domain, user.name))
        self._remember_realm(user)
        own = self.domain_sid
        # Who is in the groups of this server, it says itself.
        groups = frozenset(sid for sid in user.groups if _domain_of(sid) != own) - self._untrue_groups(user)
        # What claims mean, each forest says itself. No controller translates them here. [MS-CTA 1.3]
        claims = user.claims if _domain_of(user.sid) in (self._ids.own_domain, *self._forest) else None
        found = Identity(user.name, user.domain, member=Member(user.sid, user.primary_group, groups, claims=claims))
        try:
            return self.today(found)
        except ValueError as error:
            raise LogonError(str(error), code="domain") from error

    def _is_own(self, user: DomainUser) -> bool:
        """Return whether a user is of the server's own domain, and not of one that it trusts."""
        return _domain_of(user.sid) == self._ids.own_domain

    def _of_its_domain(self, user: DomainUser) -> DomainUser:
        """Return a user with its realm. A trusted domain's controllers say of their users what they like: none of them
        may have the SID, the realm or the name of the server's own domain. [MS-PAC 4.2.2, 4.2.3]

        Raises ``LogonError``."""
        if _domain_of(user.sid) == self.domain_sid:
            raise LogonError("the SID of the user is one of this server's own", code="domain")
        realm = self._config.realm
        claims_realm = user.realm.casefold() == realm.casefold()
        if self._ids.own_domain is None and claims_realm:
            # Without a join, the first ticket of the realm says which domain it is.
            self._ids.own_domain = _domain_of(user.sid)
        claims_name = user.domain.casefold() == self._config.workgroup.casefold()
        if self._is_own(user):
            right = claims_realm or not user.realm
            user = user._replace(realm=realm)
        else:
            right = not claims_realm and not claims_name
        if not right:
            raise LogonError(
                f"another domain gives out {user.sid} as a user of {self._config.workgroup}", code="domain"
            )
        return user

    def _untrue_groups(self, user: DomainUser) -> frozenset[Sid]:
        """Return the groups of the server's own forest that a user of another one is not in, whoever says it.

        The own domain's controllers add domain-local groups after the trust. All else comes from the user's domain.
        [MS-PAC 4.2.1, 4.2.2]"""
        own = self._ids.own_domain
        if _domain_of(user.sid) in (own, *self._forest):
            return frozenset()
        if own is None:
            # Without a join, and before the first ticket of the realm: nobody knows which domain is the own one.
            return frozenset(
                sid for sid in user.groups if sid.authority == _NT and _domain_of(sid) != _domain_of(user.sid)
            )
        added = {sid for sid in user.local_groups if _domain_of(sid) == own and sid.sub_authorities[-1] >= _FIRST_RID}
        return frozenset(sid for sid in user.groups - added if _domain_of(sid) in (own, *self._forest))

    def _ask(self, names: Collection[str], numbered: Collection[Sid], forest: bool) -> None:
        """Ask a controller for names, numbers and the domains of the forest. Blocks. Raises ``NoController``."""
        if names:
            self._names.ask(names=names)
        if numbered:
            self._ids.ask(numbered)
        if forest and self._pass_through is not None:
            self._forest = self._pass_through.forest()
            self._forest_until = time.monotonic() + _FOREST_LIFETIME

    def _remember_realm(self, user: DomainUser) -> None:
        self._realms.pop(user.domain, None)
        while len(self._realms) >= _MAX_DOMAINS:
            self._realms.popitem(last=False)
        self._realms[user.domain] = user.realm

    def today(self, identity: Identity) -> Identity:
        """Return the identity that a user has now. Raises ``ValueError`` if it may not log on any longer.

        Nobody is asked: a user of the domain stays in the groups of its logon."""
        member = identity.member
        if member is None:
            return self._local.today(identity)
        if any(not self._names.has_asked(name) for name in self._listed_groups()):
            raise ValueError("lists of users name groups of the domain that are not known yet")
        sids = member.groups | {member.sid}
        listed = {str(member.sid), *(f"{GROUP}{sid}" for sid in member.groups)}
        listed.add(f"{identity.name}@{self._realms.get(identity.domain, self._config.realm)}")
        for name in self._listed_groups():
            known = self._names.by_name(name)
            if known is not None and known.sid in sids:
                listed.add(f"{GROUP}{name}")
        fresh = member._replace(listed=frozenset(entry.casefold() for entry in listed))
        numbered = (member.sid, member.primary_group, *member.groups)
        if identity.user is not None and not all(map(self._ids.has_asked, numbered)):
            # Others' numbers have taken the place of the user's, which count as long as the user is logged on.
            return replace(identity, member=fresh)
        return replace(identity, member=fresh, user=self._host_user(fresh))

    def _listed_groups(self) -> set[str]:
        """Return the groups of the domain that lists of users name, as ``domain\\name``."""
        return {entry.removeprefix(GROUP) for entry in self._listed() if entry.startswith(GROUP) and "\\" in entry}

    def _host_user(self, member: Member) -> User | None:
        """Return the user of the host that a user of the domain acts as. None: that of the server."""
        if not self._acts():
            return None
        uid, gid = self._ids.of(member.sid), self._ids.primary(member.sid, member.primary_group)
        if uid is None:
            raise ValueError(f"{member.sid} has no uid: {self._ids.lacks(member.sid)}")
        if gid is None:
            group = member.primary_group
            raise ValueError(f"the primary group {group} of {member.sid} has no gid: {self._ids.lacks(group)}")
        groups = {self._ids.of(sid) for sid in member.groups} - {None}
        return User(uid, gid, tuple(sorted(number for number in groups if number is not None)))

    # SIDs

    def identity_sid(self, identity: Identity) -> Sid:
        return identity.member.sid if identity.member is not None else self._local.identity_sid(identity)

    def memberships(self, identity: Identity) -> frozenset[Sid]:
        found = self._local.memberships(identity)
        return found | identity.member.groups if identity.member is not None else found

    def host_users(self, sid: Sid) -> list[User]:
        number = self._ids.of(sid) if self._is_foreign(sid) and self._acts() else None
        if number is None:
            return self._local.host_users(sid)
        return [User(number, number)] if self._is_user(sid) else []

    def on_host(self, sid: Sid) -> list[Sid]:
        """Return the SIDs of the host's user or group that stands for a SID. Both do where nobody knows which it is: no
        other user or group has this number."""
        if sid == _ADMINISTRATORS:
            named = [self._listed_sid(entry) for entry in sorted(self._local.administrators)]
            return [*self._local.on_host(sid), *(one for known in named if known for one in self.on_host(known))]
        number = self._ids.of(sid) if self._is_foreign(sid) and self._acts() else None
        if number is None:
            return self._local.on_host(sid)
        is_user = self._is_user(sid)
        if is_user is None:
            return [user_sid(number), group_sid(number)]
        return [user_sid(number) if is_user else group_sid(number)]

    def _is_user(self, sid: Sid) -> bool | None:
        """Return whether a SID of the domain is a user's. None means that nobody has said it yet."""
        told = self._ids.is_user(sid)
        known = self._names.by_sid(sid) if told is None else None
        return known.use is Use.USER if known is not None else told

    def _listed_sid(self, entry: str) -> Sid | None:
        """Return the SID of a user or group of the domain that a list of users names, as far as it is known."""
        name = entry.removeprefix(GROUP)
        if "\\" in name:
            known = self._names.by_name(name)
            return known.sid if known is not None else None
        try:
            return Sid.parse(name)
        except ValueError:
            return None

    def _is_foreign(self, sid: Sid) -> bool:
        """Return whether a SID is one of a domain, and not of this server."""
        return of_a_domain(sid) and _domain_of(sid) != self.domain_sid

    # Names

    def by_sid(self, sid: Sid) -> Known | None:
        return self._local.by_sid(sid) or self._names.by_sid(sid)

    def by_name(self, text: str) -> Known | None:
        return self._local.by_name(text) or self._names.by_name(self._full_name(text))

    def _full_name(self, text: str) -> str:
        """Return a name as ``DOMAIN\\name``. One without a domain is looked for in that of the server."""
        if "\\" in text:
            return text
        name, _, realm = text.rpartition("@")
        if name and realm.casefold() == self._config.realm.casefold():
            return f"{self._config.workgroup}\\{name}"
        return f"{self._config.workgroup}\\{text}"

    def learn(self, sids: Collection[Sid] = (), names: Collection[str] = ()) -> None:
        """Ask a controller about what is not known, or no longer believed. Without a controller the answer is what was
        known before. Blocks."""
        asked = [sid for sid in sids if self._is_foreign(sid) and self._local.by_sid(sid) is None]
        full = [self._full_name(name) for name in names if self._local.by_name(name) is None]
        numbered = self._ids.unsure(asked) if self._acts() else []
        if not numbered and not self._names.unsure_sids(asked) and not self._names.unsure_names(full):
            return
        if time.monotonic() < self._silent_until:
            return
        try:
            self._names.ask(asked, full)
            self._ids.ask(numbered)
        except NoController as error:
            self._silent_until = time.monotonic() + _PAUSE
            log.info("names of the domain: %s", error)


def _no_controller(text: str, error: Exception) -> LogonError:
    return LogonError(f"{text}: {error}", NtStatus.NO_LOGON_SERVERS, "no_controller")


def _domain_of(sid: Sid) -> Sid:
    return sid._replace(sub_authorities=sid.sub_authorities[:-1])
