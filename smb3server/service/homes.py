"""Home shares: made from one template when their user connects for the first time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from smb3server.backends.local.impersonate import may_act
from smb3server.config.checks import check_folder
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.values import check_share_name
from smb3server.state.share import Share

if TYPE_CHECKING:
    from smb3server.access.identity import Identity
    from smb3server.server.server import Server

log = logging.getLogger(__name__)

USER = "{user}"
"""Stands for the user's name in the path."""


class HomeShares:
    """Makes the home shares of one server."""

    def __init__(self, server: Server, config: Config, make: Callable[[Config, ShareConfig, list[str]], Share]) -> None:
        """``make`` makes a share that is not served yet. Raises ``ConfigError``."""
        self._server = server
        self._config = config
        self._make = make

    def _was_named(self, user: str) -> bool:
        """Return whether somebody on this machine has named the account: in the configuration, or by its unix_user.

        Administrators by SMB may make accounts of any name, and would act as whoever has the home. A server that may
        not act as users does everything as its own.
        """
        account = self._server.accounts.find(user)
        return account is not None and (not account.stored or account.user is not None or not may_act())

    def find(self, name: str, identity: Identity | None) -> Share | None:
        """Return the home share of a user with an account, if ``name`` is the user's name.

        None also if the user has no home: to clients there is no such share.
        """
        homes = self._config.homes
        if homes is None or identity is None or identity.guest or identity.anonymous or identity.domain:
            return None
        user = identity.name
        if name.casefold() != user.casefold() or "/" in user or user.startswith("."):
            return None
        if not self._was_named(user):
            log.warning(
                "home of %s: not served, as an account without unix_user may have been made from afar; remedy: "
                "smb3server user set %s --unix-user NAME",
                user,
                user,
            )
            return None
        path = Path(str(homes.path).replace(USER, user))
        # The template's users may be fewer than all.
        if homes.users is not None and not identity.is_on(homes.users):
            return None
        wanted = msgspec.structs.replace(
            homes,
            name=user,
            path=path,
            users=frozenset([user.casefold()]),
            snapshots=homes.snapshots.replace(USER, user),
        )
        try:
            check_share_name(user)
            check_folder(path)
            share = self._make(self._config, wanted, [])
        except ConfigError as error:
            log.warning("home of %s: %s", user, error)
            return None
        share.is_home = True
        log.info("share %s: %s is the home of %s", share.name, os.fspath(path), user)
        self._server.add_share(share)
        return share
