"""The namespaces that a server has: each a root with links, which lead to targets. [MS-DFSC 3.2.1, MS-DFSNM 3.1.1]

All of it is plain data that never changes: who changes a link makes another ``Namespace``. Whoever has them, a
configuration or a program, hands them to the service.
"""

from __future__ import annotations

import enum
import ipaddress
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from smb3server.backends import names
from smb3server.backends.name_rules import WINDOWS, Key
from smb3server.net.host_lists import Network, is_address

DEFAULT_TTL = 300
"""Seconds that clients keep a referral, as on Windows."""
MAX_RANK = 31
_UNKNOWN_COST = 1 << 16
Path = tuple[str, ...]


class Priority(enum.IntEnum):
    """The class of a target (DFS_TARGET_PRIORITY_CLASS). [MS-DFSNM 2.2.2.7]"""

    NORMAL = 0
    FIRST = 1
    """Before all others, wherever it is (GlobalHigh)."""
    HIGH = 2
    """Before the others of equal cost (SiteCostHigh)."""
    LOW = 3
    """After the others of equal cost (SiteCostLow)."""
    LAST = 4
    """After all others, wherever it is (GlobalLow)."""


_GROUP = {Priority.FIRST: 0, Priority.LAST: 2}
_WITHIN = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


@dataclass(frozen=True, slots=True)
class Target:
    """A share, or a folder of one, that a link leads to."""

    server: str
    """Its name or address. Empty means the server that gives the referral, by the name that the client has for it."""
    path: Path
    """The share, and folders in it."""
    priority: Priority = Priority.NORMAL
    rank: int = 0
    """0 (first) to 31, among targets of the same cost and priority."""
    site: str = ""

    def __str__(self) -> str:
        text = "/".join(self.path)
        text = f"//{self.server}/{text}" if self.server else text
        if self.priority is not Priority.NORMAL:
            text += f"; priority={self.priority.name.lower()}"
        if self.rank:
            text += f"; rank={self.rank}"
        return text + (f"; site={self.site}" if self.site else "")

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``//server/share/folder; priority=low; rank=3; site=berlin``, or ``share`` for a share of this server.

        Raises ``ValueError``."""
        place, *options = (part.strip() for part in text.split(";"))
        place = place.replace("\\", "/")
        parts = [part for part in place.split("/") if part]
        server = ""
        if place.startswith("//"):
            server, *parts = parts or [""]
        elif place.startswith("/"):
            raise ValueError(f"{text}: write //SERVER/SHARE, or SHARE for a share of this server")
        if not parts or (place.startswith("//") and not server):
            raise ValueError(f"{text}: it names no share; write //SERVER/SHARE, or SHARE for a share of this server")
        if any(character in server for character in ':*?"<>| ') and not is_address(server):
            raise ValueError(f"{text}: {server} is no name or address of a server; a port cannot be given")
        found = {}
        for option in options:
            key, separator, value = (entry.strip() for entry in option.partition("="))
            if not separator or key not in ("priority", "rank", "site") or key in found:
                raise ValueError(f"{text}: after the share come priority=, rank= or site=, not {option}")
            found[key] = value
        try:
            priority = Priority[found.get("priority", "normal").upper()]
        except KeyError:
            known = ", ".join(entry.name.lower() for entry in Priority)
            raise ValueError(f"{text}: priority is one of {known}") from None
        rank = found.get("rank", "0")
        if not rank.isascii() or not rank.isdigit() or int(rank) > MAX_RANK:
            raise ValueError(f"{text}: rank is 0 to {MAX_RANK}")
        return cls(server, _checked(parts, text), priority, int(rank), found.get("site", ""))


def _checked(parts: Iterable[str], text: str) -> Path:
    path = tuple(parts)
    for part in path:
        try:
            names.check_component(part)
        except OSError as error:
            raise ValueError(f"{text}: {part!r}: {error.strerror}") from error
    return path


@dataclass(frozen=True, slots=True)
class Link:
    """A folder of a namespace that leads to targets."""

    path: Path
    """Below the root. It may lie in folders, which are there for the links in them alone. Empty means that the root
    itself leads on: the share is on another server (``moved``)."""
    targets: tuple[Target, ...]
    comment: str = ""
    ttl: int | None = None
    """Seconds that clients keep the referral. None means that of the namespace."""
    failback: bool | None = None
    """None means that of the namespace."""

    @property
    def name(self) -> str:
        """The path as people write it."""
        return "/".join(self.path)

    @classmethod
    def make(
        cls, name: str, targets: Iterable[str], comment: str = "", ttl: int | None = None, failback: bool | None = None
    ) -> Link:
        """Return the link at a path with slashes. ``targets`` are for ``Target.parse``. Raises ``ValueError``."""
        path = _checked((part for part in name.replace("\\", "/").split("/") if part), name)
        if not path:
            raise ValueError("a link needs a name")
        found = tuple(map(Target.parse, targets))
        if not found:
            raise ValueError(f"link {name}: it needs at least one target, as //SERVER/SHARE")
        return cls(path, found, comment, ttl, failback)


class Site(NamedTuple):
    """A part of the network whose machines are near to each other."""

    name: str
    networks: tuple[Network, ...]
    nearest: tuple[str, ...] = ()
    """Other sites, the nearest first. Those that are not named are the farthest."""


@dataclass(frozen=True)
class Namespace:
    """A stand-alone namespace. ``links`` lie beside each other: none lies below another."""

    name: str
    """The share by which clients reach it."""
    links: tuple[Link, ...] = ()
    ttl: int = DEFAULT_TTL
    """Seconds that clients keep a referral."""
    failback: bool = False
    """Whether clients go back to a better target when it is there again. [MS-DFSC 2.2.4]"""
    targets: tuple[Target, ...] = ()
    """Servers that have this namespace, too. Empty means this one alone."""
    sites: tuple[Site, ...] = field(default=())

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for links that cannot be reached, and for sites that nobody knows."""
        for link in self.links:
            covering = self._index.get(WINDOWS.path_key(link.path))
            if covering is not link:
                raise ValueError(f"link {link.name}: given twice")
            above = self.covering(link.path[:-1]) if link.path else None
            if above is not None:
                raise ValueError(f"link {link.name}: it lies below link {above.name}, and could not be reached")
        known = {site.name.casefold() for site in self.sites}
        for site in self.sites:
            for name in site.nearest:
                if name.casefold() not in known:
                    raise ValueError(f"site {site.name}: there is no site {name}")
        for target in (*self.targets, *(target for link in self.links for target in link.targets)):
            if target.site and target.site.casefold() not in known:
                raise ValueError(f"target {target}: there is no site {target.site}")

    @cached_property
    def _index(self) -> dict[Key, Link]:
        return {WINDOWS.path_key(link.path): link for link in self.links}

    @cached_property
    def _deepest(self) -> int:
        """The number of components of the longest link."""
        return max(map(len, self._index), default=0)

    def covering(self, path: Path) -> Link | None:
        """Return the link that is at ``path`` or above it. [MS-DFSC 3.2.4.1]"""
        # A client may name a path of thousands of components.
        key = WINDOWS.path_key(path[: self._deepest])
        for depth in range(len(key) + 1):
            link = self._index.get(key[:depth])
            if link is not None:
                return link
        return None

    def with_links(self, links: Iterable[Link]) -> Namespace:
        """Return it with other links. Raises ``ValueError``."""
        return Namespace(self.name, tuple(links), self.ttl, self.failback, self.targets, self.sites)

    def site_of(self, address: str, named: str = "") -> Site | None:
        """Return the site of a client: the one it names, else that of its address.

        ``address``: as sockets return it."""
        for site in self.sites:
            if named and site.name.casefold() == named.casefold():
                return site
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return None
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        nearest = [(network.prefixlen, site) for site in self.sites for network in site.networks if found in network]
        return max(nearest, key=lambda entry: entry[0])[1] if nearest else None


def moved(name: str, server: str) -> Namespace:
    """Return the namespace that leads clients of a share to another server, where it has the same name.

    ``server``: an address. The answer is that for a link, as Samba's for ``msdfs proxy``: the target is a share like
    any other, and not a root of its own. [MS-DFSC 3.2.5.5]"""
    return Namespace(name, (Link((), (Target(server, (name,)),)),))


def target_sets(
    targets: Sequence[Target], site: Site | None, shuffle: Callable[[list[Target]], None] = random.shuffle
) -> list[list[Target]]:
    """Return the targets for a client of ``site`` in their order, in target sets. Each set is shuffled, so that clients
    spread over its targets. [MS-DFSC 3.2.5.5, 3.2.1.2]"""
    found: dict[tuple[int, int, int, int], list[Target]] = {}
    for target in targets:
        key = (
            _GROUP.get(target.priority, 1),
            _cost(site, target.site),
            _WITHIN.get(target.priority, 0),
            target.rank,
        )
        found.setdefault(key, []).append(target)
    sets = [found[key] for key in sorted(found)]
    for one in sets:
        shuffle(one)
    return sets


def _cost(site: Site | None, other: str) -> int:
    """Return how far a site is: 0 for the client's own, and equally far for a client of no site."""
    if site is None or not other:
        return _UNKNOWN_COST
    order = [site.name.casefold(), *(name.casefold() for name in site.nearest)]
    return order.index(other.casefold()) if other.casefold() in order else _UNKNOWN_COST
