"""The uids and gids that the directory of the domain stores for its users and groups. [RFC 2307 5.3, MS-ADTS 3.1.1.3]

A controller is asked by LDAP as the machine account, and its answers are remembered. All nodes of a cluster ask one
directory, so that they have the same numbers. Without a controller what is remembered goes on to count.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from smb3server.access.descriptor import Sid
from smb3server.domain.ldap_client import Entry, LdapConnection, escaped
from smb3server.domain.ldap_questions import Asks

_LIFETIME, _NEGATIVE_LIFETIME = 3600.0, 60.0
"""Seconds for which numbers, and that there is none, are believed."""
_MAX_ENTRIES = 8192
_AT_ONCE = 50
"""SIDs of one search."""
_ATTRIBUTES = ("objectSid", "sAMAccountType", "uidNumber", "gidNumber")
_USER_KIND = 3
"""The high bits of sAMAccountType of users and computers. [MS-SAMR 2.2.1.9]"""


class Numbers(NamedTuple):
    """What the directory stores for a SID."""

    is_user: bool
    uid: int | None
    gid: int | None
    """Of a user: for a primary group that has none itself."""


_NOTHING = Numbers(False, None, None)


class NumberSource(Protocol):
    """Who knows numbers."""

    def numbers(self, sids: Collection[Sid]) -> dict[Sid, Numbers]:
        """Return what is stored for those SIDs that the domain has. Blocks. Raises ``NoController``."""
        ...


class StoredIds:
    """Implements ``ids.IdMap`` for numbers that the directory stores. Several threads may use it."""

    def __init__(
        self, source: NumberSource, first: int, last: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Numbers outside of ``first`` to ``last`` do not count: they could be root's, or a user's of the host."""
        self._source = source
        self._first = first
        self._last = last
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Sid, tuple[float, Numbers]] = OrderedDict()
        self.own_domain: Sid | None = None

    def _numbers(self, sid: Sid) -> Numbers:
        known = self._known.get(sid)
        return known[1] if known is not None else _NOTHING

    def _allowed(self, number: int | None) -> int | None:
        return number if number is not None and self._first <= number <= self._last else None

    def of(self, sid: Sid) -> int | None:
        found = self._numbers(sid)
        return self._allowed(found.uid if found.is_user else found.gid)

    def primary(self, user: Sid, group: Sid) -> int | None:
        """Return the number of the primary group. If the directory has none, that of the user's own entry counts."""
        number = self.of(group)
        return number if number is not None else self._allowed(self._numbers(user).gid)

    def is_user(self, sid: Sid) -> bool | None:
        return self._numbers(sid).is_user if sid in self._known else None

    def lacks(self, sid: Sid) -> str:
        if not self._is_ours(sid):
            return "it is of another domain"
        found = self._numbers(sid)
        name, number = ("uidNumber", found.uid) if found.is_user else ("gidNumber", found.gid)
        if number is None:
            return f"the directory has no {name} for it"
        return f"its {name} {number} is outside of id_range, which is {self._first} to {self._last}"

    def _is_ours(self, sid: Sid) -> bool:
        return sid._replace(sub_authorities=sid.sub_authorities[:-1]) == self.own_domain

    def unsure(self, sids: Collection[Sid]) -> list[Sid]:
        now = self._clock()
        return [sid for sid in sids if self._is_ours(sid) and self._known.get(sid, (0.0,))[0] <= now]

    def has_asked(self, sid: Sid) -> bool:
        return sid in self._known or not self._is_ours(sid)

    def ask(self, sids: Collection[Sid]) -> None:
        wanted = self.unsure(sids)
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            found = self._source.numbers(part)
            for sid in part:
                self._keep(sid, found.get(sid, _NOTHING))

    def _keep(self, sid: Sid, numbers: Numbers) -> None:
        lifetime = _LIFETIME if numbers.uid is not None or numbers.gid is not None else _NEGATIVE_LIFETIME
        with self._lock:
            self._known.pop(sid, None)
            while len(self._known) >= _MAX_ENTRIES:
                self._known.popitem(last=False)
            self._known[sid] = self._clock() + lifetime, numbers


class LdapNumbers:
    """The ``NumberSource`` that asks a controller."""

    def __init__(self, directory: Asks, realm: str) -> None:
        self._directory = directory
        self._base = ",".join(f"DC={escaped(part)}" for part in realm.lower().split("."))

    def numbers(self, sids: Collection[Sid]) -> dict[Sid, Numbers]:
        def question(ldap: LdapConnection) -> dict[Sid, Numbers]:
            found = ldap.search(self._base, _ATTRIBUTES, [("objectSid", str(sid)) for sid in sids])
            # References to other domains have no entry.
            return dict(_numbers_of(entry) for _, entry in found if "objectsid" in entry)

        told = self._directory.ask(question)
        return {sid: told[sid] for sid in sids if sid in told}


def _numbers_of(entry: Entry) -> tuple[Sid, Numbers]:
    """Return what an entry of the directory says. Raises ``ValueError``."""
    kind = _number(entry, "samaccounttype") or 0
    found = Numbers(kind >> 28 == _USER_KIND, _number(entry, "uidnumber"), _number(entry, "gidnumber"))
    return Sid.unpack(entry["objectsid"][0]), found


def _number(entry: Entry, attribute: str) -> int | None:
    """Return a number of 32 bits. None: the entry has none, or one that is no uid of this host."""
    values = entry.get(attribute, [])
    text = values[0] if len(values) == 1 else b""
    return int(text) if text.isdigit() and len(text) <= 10 else None
