"""The membership of a server in a domain: makes the directory that knows its users."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Protocol

from smb3server.access.descriptor import Sid
from smb3server.auth.directory import Known
from smb3server.backends.local.impersonate import may_act
from smb3server.domain.central_policies import CentralPolicies, file_of
from smb3server.domain.directory import DomainDirectory
from smb3server.domain.ids import IdMap, Ids
from smb3server.domain.ldap_questions import Asks
from smb3server.domain.names import ControllerNames, Names, SealedCalls, Source
from smb3server.domain.questions import Questions
from smb3server.domain.stored_ids import Numbers, NumberSource, StoredIds
from smb3server.domain.user import NoController, PassThrough
from smb3server.server.server import Server
from smb3server.settings.domain import DomainConfig

log = logging.getLogger(__name__)

POLICIES_EVERY = 300.0
"""Seconds between two looks at the central access policies of the directory."""
POLICIES_RETRY = 30.0
"""Seconds until the next look while no controller answers."""


class Channel(PassThrough, SealedCalls, NumberSource, Protocol):
    """What the machine account may ask of controllers: who has made a response, names, and numbers."""

    @property
    def directory(self) -> Asks:
        """Has controllers asked by LDAP."""
        ...

    @property
    def domain_sid(self) -> Sid | None:
        """SID of the domain. None if it is not known."""
        ...


class _Nobody:
    """The sources of a server that has no secure channel: it knows those who have logged on."""

    def of_sids(self, sids: Collection[Sid]) -> list[Known | None]:
        raise NoController("the server has no secure channel to a controller")

    def of_names(self, names: Collection[str]) -> list[Known | None]:
        raise NoController("the server has no secure channel to a controller")

    def numbers(self, sids: Collection[Sid]) -> dict[Sid, Numbers]:
        raise NoController("the server has no machine account that could ask for numbers")


class Membership:
    """The membership of one running server."""

    def __init__(self, server: Server, config: DomainConfig, channel: Channel | None = None) -> None:
        """Have ``server`` know the users of the domain. ``channel``: None means that they log on by tickets alone."""
        self._questions = Questions()
        source: Source = ControllerNames(channel) if channel is not None else _Nobody()
        ids: IdMap
        if config.id_mapping == "rfc2307":
            ids = StoredIds(channel or _Nobody(), *config.id_range)
        else:
            ids = Ids(config.id_mapping, *config.id_range, config.trusted_ranges)
        if channel is not None:
            ids.own_domain = channel.domain_sid
        self._policies: CentralPolicies | None = None
        if channel is not None and config.secret is not None:
            file, chosen = file_of(config.secret), config.central_policies
            self._policies = CentralPolicies(channel.directory, file, chosen, channel.domain_sid)
            self._policies.load()
        server.accounts = DomainDirectory(
            server.local_accounts,
            config,
            Names(source),
            self._questions,
            ids,
            listed=lambda: _listed(server),
            acts=may_act,
            pass_through=channel,
            policies=self._policies.policies if self._policies is not None else None,
        )

    async def run(self) -> None:
        """Apply the central access policies as the directory changes."""
        if self._policies is not None:
            await follow(self._policies.refresh)

    def close(self) -> None:
        """Ask controllers nothing more."""
        self._questions.close()


async def follow(refresh: Callable[[], None], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
    """Call ``refresh``, which asks a controller, on a thread again and again: soon if none answers."""
    while True:
        pause = POLICIES_EVERY
        try:
            await asyncio.to_thread(refresh)
        except (NoController, OSError) as error:
            log.warning("central access policies: %s", error)
            pause = POLICIES_RETRY
        await sleep(pause)


def _listed(server: Server) -> Iterator[str]:
    """Iterate over the entries of the lists of users that are in force."""
    settings = server.settings
    yield from settings.admins
    yield from settings.security_operators or ()
    yield from settings.backup_operators
    for group in settings.groups:
        yield from settings.groups.members(group)
    for share in server.share_list.values():
        yield from share.users or ()
        yield from share.read_list
        yield from share.write_list or ()
