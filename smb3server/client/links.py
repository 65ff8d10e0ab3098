"""The links of a namespace (DFS), followed: where a path lies, and the shares that links lead to. [MS-DFSC 3.1]

What a server says of a link is kept for as long as it says. Of several targets the first that can be reached is used,
and the next one when it no longer can.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from smb3server.client import credentials, errors, names
from smb3server.client.address import Address
from smb3server.client.credentials import Login
from smb3server.client.link import Link
from smb3server.process.log_lines import printable
from smb3server.wire.dfs import Referral, ReferralFlags
from smb3server.wire.status import NtStatus, StatusError

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_TARGETS = 16
"""Targets of a link that are kept: a hostile server could name thousands."""
MAX_LINKS = 8
"""Links that lead to links that lead to links; more are taken for a circle."""
PATIENCE = 5.0
"""Seconds that a target may be away, or take to connect to, while there are others."""
_LEAST_TTL = 1.0
_AWAY = frozenset(
    [
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ECONNABORTED,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    ]
)
_NEXT = (NtStatus.BAD_NETWORK_NAME, NtStatus.NETWORK_NAME_DELETED)
"""Statuses of a target that is not there."""


class Target(Protocol):
    """A connected share."""

    async def close(self) -> None:
        """Close it."""
        ...


S = TypeVar("S", bound=Target)


@dataclass(eq=False)
class Known(Generic[S]):
    """A link that a server has told of."""

    parts: tuple[str, ...]
    """Its path from the share's root."""
    targets: list[str]
    """As in ``\\\\server\\share\\folder``, the best first."""
    expires: float
    """The event loop's time."""
    better: int = 0
    """The targets that a client goes back to: those of the first target set, if the server wants that."""
    hint: int = 0
    """The target that was used last."""
    share: S | None = None
    """The target, once it is connected."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Links(Generic[S]):
    """The links of one share."""

    def __init__(self, link: Link, login: Login, make: Callable[[Link, Login, int], S], depth: int) -> None:
        """``make`` makes a share of a connected ``Link``. ``depth``: the number of links that led here."""
        self._link = link
        self._login = login
        self._make = make
        self._depth = depth
        self._known: dict[tuple[str, ...], Known[S]] = {}
        self._retired: list[S] = []
        """Shares of targets that were used before. Somebody may still have files open there."""

    def _parts(self, path: str) -> tuple[str, ...]:
        whole = names.join(self._link.address.path, path)
        return tuple(whole.split("/")) if whole else ()

    def find(self, path: str) -> Known[S] | None:
        """Return the link at a path, or above it, if it is known."""
        key = tuple(map(names.key, self._parts(path)))
        for depth in range(1, len(key) + 1):
            found = self._known.get(key[:depth])
            if found is not None:
                return found
        return None

    async def learn(self, path: str, on_wire: str) -> Known[S] | None:
        """Ask the server which link is at a path or above it. None if there is none. Raises ``RemoteError``.

        ``on_wire``: the path from the share's root, as it travels."""
        address = self._link.address
        try:
            found = await self._link.referral(f"\\{address.host}\\{address.share}\\{on_wire}".rstrip("\\"))
        except StatusError as error:
            if error.status in (NtStatus.NOT_FOUND, NtStatus.OBJECT_PATH_NOT_FOUND, NtStatus.FS_DRIVER_REQUIRED):
                return None
            raise
        if found.root or not found.targets:
            return None
        # The path that was asked for begins with server and share.
        before = f"\\{address.host}\\{address.share}"
        taken = found.path_consumed // 2 - len(before)
        depth = on_wire[: max(0, taken - 1)].count("\\") + 1 if taken > 0 else 0
        parts = self._parts(path)[:depth]
        if not parts:
            return None
        return self._remember(parts, found)

    def _remember(self, parts: tuple[str, ...], found: Referral) -> Known[S]:
        """Keep what a server says of a link. Its targets keep their connections. [MS-DFSC 3.1.5.4.3]"""
        key = tuple(map(names.key, parts))
        expires = asyncio.get_running_loop().time() + max(found.ttl, _LEAST_TTL)
        told = found.targets[:MAX_TARGETS]
        targets = [target.address for target in told]
        first_set = next((number for number, target in enumerate(told) if number and target.begins_set), len(told))
        better = first_set if found.flags & ReferralFlags.TARGET_FAILBACK else 0
        before = self._known.get(key)
        if before is None:
            before = self._known[key] = Known(parts, targets, expires, better)
            return before
        before.expires, before.better = expires, better
        used = before.targets[before.hint]
        before.hint, before.targets = targets.index(used) if used in targets else 0, targets
        if used not in targets:
            self._retire(before)
        return before

    async def refresh(self, known: Known[S], path: str, on_wire: str) -> Known[S] | None:
        """Ask again about a link that was kept too long. Without an answer what is known goes on to count."""
        if asyncio.get_running_loop().time() < known.expires:
            return known
        try:
            found = await self.learn(path, on_wire)
        except (*errors.TROUBLE, OSError) as error:
            log.debug("referral: %s", error)
            return known
        if found is not known:
            self._known.pop(tuple(map(names.key, known.parts)), None)
        elif known.better and known.hint >= known.better:
            # A better target may be there again. [MS-DFSC 3.1.5.4.3]
            known.hint = 0
            self._retire(known)
        return found

    def _retire(self, known: Known[S]) -> None:
        if known.share is not None:
            self._retired.append(known.share)
            known.share = None

    async def share_of(self, known: Known[S], path: str) -> S:
        """Return the connected share that a link leads to. Raises ``RemoteError``."""
        if self._depth >= MAX_LINKS:
            raise errors.make(errno.ELOOP, path, reason=f"more than {MAX_LINKS} links lead to each other")
        async with known.lock:
            if known.share is None:
                known.share = await self._connect(known)
            return known.share

    def _give_up(self, known: Known[S], share: S, error: OSError) -> bool:
        """Turn to the next target if ``share``, the present one, cannot be reached. Return whether there is another."""
        if len(known.targets) < 2 or not _is_away(error):
            return False
        if known.share is share:
            # Others who use it may have found the same.
            known.hint = (known.hint + 1) % len(known.targets)
            self._retire(known)
        return True

    async def _connect(self, known: Known[S]) -> S:
        """Connect to the first target that can be reached, beginning with the one that was used last."""
        options = self._link.options
        if len(known.targets) > 1:
            options = replace(options, patience=min(options.patience, PATIENCE), timeout=min(options.timeout, PATIENCE))
        failure: OSError | None = None
        order = [*range(known.hint, len(known.targets)), *range(known.hint)]
        for number in order:
            address = self._address(known.targets[number])
            if address is None:
                continue
            login = credentials.on_the_way(self._login, self._link.address.host, address.host, options)
            link = Link(replace(address, user=login.user, domain=login.domain), login, options)
            try:
                self._check_trust(address.host)
                await link.connect()
            except OSError as error:
                failure = failure or error
                log.debug("target %s: %s", printable(str(address), 1024), error)
                if not _is_away(error):
                    raise
                continue
            known.hint = number
            return self._make(link, login, self._depth + 1)
        raise failure or errors.make(errno.EPROTO, "/".join(known.parts), reason="the link names no share")

    def _address(self, target: str) -> Address | None:
        """Return the address of a target; None if it names no share. A referral names no port, so it is that of the
        namespace."""
        server, share, *folders = [part for part in target.split("\\") if part] + ["", ""]
        # The server chose the names, and they are shown to people.
        if not server or not share or not f"{server}{share}".isprintable():
            return None
        path = "/".join(folder for folder in folders if folder)
        return Address(server, share, path, self._link.address.port)

    def _check_trust(self, host: str) -> None:
        """Refuse to log on elsewhere because of a message that nobody has signed. Raises ``RemoteError``.

        Who can change a referral on its way could have the answer to a challenge sent to a server of their own."""
        if host.casefold() == self._link.address.host.casefold() or not self._login.password:
            return
        if not self._link.is_protected:
            reason = f"the link leads to {host}, as an unsigned message says; connect with signing to follow it"
            raise errors.make(errno.EACCES, str(self._link.address), reason=reason)

    async def follow(
        self,
        path: str,
        on_wire: str,
        here: Callable[[], Awaitable[T]],
        beyond: Callable[[S, str], Awaitable[T]],
        repeats: bool,
    ) -> T:
        """Do something with a path: ``here``, or ``beyond``, on the share that a link leads to, with the rest of the
        path. ``on_wire``: the path from the share's root, as it travels. Raises ``RemoteError``.

        What cannot be done because a target is away is done once on each of the others if it ``repeats``."""
        known = self.find(path)
        if known is not None:
            known = await self.refresh(known, path, on_wire)
        if known is None:
            try:
                return await here()
            except errors.RemoteError as error:
                if error.status != NtStatus.PATH_NOT_COVERED:
                    raise
                known = await self.learn(path, on_wire)
                if known is None:
                    raise
        rest = "/".join(self._parts(path)[len(known.parts) :])
        for left in reversed(range(len(known.targets))):
            share = await self.share_of(known, path)
            try:
                return await beyond(share, rest)
            except errors.RemoteError as error:
                if not self._give_up(known, share, error) or not left or not repeats:
                    if error.filename == rest:
                        error.filename = path
                    raise
        raise AssertionError("a link has at least one target")

    async def place(self, path: str) -> tuple[S, str] | None:
        """Return where a known link above a path leads: the share, and the rest of the path. Raises ``RemoteError``."""
        known = self.find(path)
        if known is None:
            return None
        return await self.share_of(known, path), "/".join(self._parts(path)[len(known.parts) :])

    @property
    def shares(self) -> list[S]:
        """The shares that links have led to."""
        return [known.share for known in self._known.values() if known.share is not None]

    async def close(self) -> None:
        """Close the shares that links led to."""
        shares = [*self.shares, *self._retired]
        self._known, self._retired = {}, []
        for share in shares:
            await share.close()


def _is_away(error: OSError) -> bool:
    """Return whether an error says that a target cannot be reached."""
    return error.errno in _AWAY or isinstance(error, TimeoutError) or getattr(error, "status", 0) in _NEXT
