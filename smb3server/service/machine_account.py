"""The machine account of a running member of a domain: its secure channel, and the upkeep of its password."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from smb3server.domain.machine import MachineError
from smb3server.domain.member import Member
from smb3server.domain.user import NoController
from smb3server.process.presence import exists
from smb3server.settings.domain import DomainConfig

log = logging.getLogger(__name__)

EVERY = 3600.0
"""Seconds between two looks at the password's age, at most."""


class MachineAccount:
    """The machine account of a server that has joined."""

    def __init__(
        self, member: Member, rotation: int, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """``rotation``: seconds after which the password is changed. 0 means never."""
        self.member = member
        self._pause = min(EVERY, float(rotation or EVERY))
        self._sleep = sleep

    @classmethod
    def of(cls, config: DomainConfig) -> MachineAccount | None:
        """Return the machine account of a configuration. None: the server has not joined, and has a keytab alone."""
        if config.secret is None or not exists(config.secret):
            return None
        return cls(Member(config), config.rotation)

    async def run(self) -> None:
        """Change the password whenever it is old enough. Controllers are asked on a thread."""
        while True:
            try:
                await asyncio.to_thread(self.member.rotate_if_due)
            except (MachineError, NoController, OSError) as error:
                log.warning("the machine account's password is not changed: %s", error)
            await self._sleep(self._pause)

    def close(self) -> None:
        """End the secure channel."""
        self.member.close()
