"""The uids and gids of the domain's users and groups on this host.

They are computed from SIDs alone, so that every node of a cluster, and every process, has the same. A user and a group
never have one SID, so one range of numbers serves both. ``stored_ids`` has those that the domain's directory stores.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from smb3server.access.descriptor import Sid
from smb3server.settings.domain import SLICE, IdMapping

log = logging.getLogger(__name__)


class IdMap(Protocol):
    """Maps SIDs to numbers of this host. Only ``ask`` blocks."""

    own_domain: Sid | None
    """SID of the server's own domain. None until it is known."""

    def of(self, sid: Sid) -> int | None:
        """Return the number of a user or a group, or None if it has none."""
        ...

    def primary(self, user: Sid, group: Sid) -> int | None:
        """Return the gid of a user whose primary group is ``group``, or None if there is none."""
        ...

    def is_user(self, sid: Sid) -> bool | None:
        """Return whether the number is a user's. None means that the map does not know."""
        ...

    def lacks(self, sid: Sid) -> str:
        """Say why a SID has no number."""
        ...

    def unsure(self, sids: Collection[Sid]) -> list[Sid]:
        """Return those of which nothing is known that is believed."""
        ...

    def has_asked(self, sid: Sid) -> bool:
        """Return whether a number is there as far as there can be one, however old the answer is."""
        ...

    def ask(self, sids: Collection[Sid]) -> None:
        """Ask a controller. Blocks. Raises ``NoController``."""
        ...


class Ids:
    """Implements ``IdMap`` for numbers that are computed.

    - ``rid``: the RID is added to the first number. Each trusted domain needs a range of its own.
    - ``autorid``: the range has slices. The first one is for the lowest RIDs of the server's own domain. Which one
      others have is computed from the domain's SID. If two domains had the same one, the second has no numbers.
    """

    def __init__(
        self, method: IdMapping, first: int, last: int, trusted: Mapping[Sid, tuple[int, int]] | None = None
    ) -> None:
        """``trusted``: first and last numbers of trusted domains, by their SIDs, for ``rid``."""
        self._method = method
        self._trusted = trusted or {}
        self._first = first
        self._last = last
        self._slices = (last - first + 1) // SLICE
        self._owners: dict[int, tuple[Sid, int]] = {}
        self.own_domain: Sid | None = None

    def primary(self, user: Sid, group: Sid) -> int | None:
        return self.of(group)

    def is_user(self, sid: Sid) -> bool | None:
        return None

    def lacks(self, sid: Sid) -> str:
        domain = _domain_of(sid)
        if self._method == "rid" and domain != self.own_domain:
            if domain not in self._trusted:
                return f"`trusted_ranges` has no range for {domain}, a trusted domain; or use idmap autorid"
            return "its range in `trusted_ranges` is too narrow"
        return "id_range is too narrow"

    def unsure(self, sids: Collection[Sid]) -> list[Sid]:
        return []

    def has_asked(self, sid: Sid) -> bool:
        return True

    def ask(self, sids: Collection[Sid]) -> None:
        """Ask nobody: all numbers are computed."""

    def of(self, sid: Sid) -> int | None:
        above, rid = _domain_of(sid), sid.sub_authorities[-1] if sid.sub_authorities else 0
        if len(above.sub_authorities) != 4 or above.sub_authorities[0] != 21:
            return None
        if self._method == "rid":
            own = (self._first, self._last) if above == self.own_domain else None
            found = own or self._trusted.get(above)
            return found[0] + rid if found is not None and found[0] + rid <= found[1] else None
        part, within = divmod(rid, SLICE)
        place = self._place(above, part)
        return None if place is None else self._first + place * SLICE + within

    def _place(self, domain: Sid, part: int) -> int | None:
        """Return which slice a domain has for its ``part``-th hundred thousand of RIDs."""
        if domain == self.own_domain and not part:
            return 0
        if self._slices < 2:
            return None
        digest = hashlib.sha256(f"{domain}/{part}".encode()).digest()
        place = 1 + int.from_bytes(digest[:8], "big") % (self._slices - 1)
        owner = self._owners.setdefault(place, (domain, part))
        if owner != (domain, part):
            log.warning("ids: %s and %s would have the same numbers; remedy: a wider id_range", domain, owner[0])
            return None
        return place


def _domain_of(sid: Sid) -> Sid:
    return sid._replace(sub_authorities=sid.sub_authorities[:-1])
