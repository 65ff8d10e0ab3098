"""Changes of accounts that clients ask for, kept in the users file and in effect at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smb3server.auth.users_file import StoredUser, Users, UsersFileError, change_users
from smb3server.config.error import ConfigError
from smb3server.config.sources.users import owners
from smb3server.service.users import LiveUsers
from smb3server.state.ports import AccountNotKept

_TIMEOUT = 30.0
"""Seconds for the event loop to take a change over."""


class UsersFileKeeper:
    """Implements ``state.ports.AccountKeeper`` for one running server. Its methods run on worker threads and block."""

    def __init__(self, users: LiveUsers, loop: asyncio.AbstractEventLoop, in_cluster: bool = False) -> None:
        """``in_cluster``: whether the server is a node of a cluster. Nothing is changed then: a user who is disabled
        at one node could still log on at the next."""
        self._users = users
        self._loop = loop
        self._in_cluster = in_cluster

    def add(self, user: StoredUser) -> None:
        """Add an account. Raises ``AccountNotKept``."""

        def change(users: Users) -> None:
            if users.find(user.name) is not None:
                raise AccountNotKept(f"there is a user {user.name} already")
            users.put(user)

        self._change(change)

    def change(self, name: str, change: Callable[[StoredUser], StoredUser]) -> None:
        """Change an account. Raises ``AccountNotKept``."""
        self._change(lambda users: users.put(change(_find(users, name))))

    def remove(self, name: str) -> None:
        """Remove an account. Raises ``AccountNotKept``."""

        def remove(users: Users) -> None:
            users.remove(_find(users, name).name)

        self._change(remove)

    def _change(self, change: Callable[[Users], None]) -> None:
        config = self._users.config
        if self._in_cluster:
            raise AccountNotKept(
                "this server is a node of a cluster, and each node has a users file of its own; remedy: change it with "
                "`smb3server user` at one node, copy it to the others, then `smb3server reload` at each"
            )
        if config.users_file is None:
            raise AccountNotKept("this server has no users file")
        try:
            change_users(config.users_file, change, owners(config.run_as))
            asyncio.run_coroutine_threadsafe(self._take_over(), self._loop).result(_TIMEOUT)
        except UsersFileError as error:
            raise AccountNotKept(f"the users file cannot be changed: {error}") from error
        except ConfigError as error:
            raise AccountNotKept(f"the users file is changed, but cannot be used: {error}") from error

    async def _take_over(self) -> None:
        self._users.reload()


def _find(users: Users, name: str) -> StoredUser:
    found = users.find(name)
    if found is None:
        raise AccountNotKept(
            f"user {name} is not in the users file: change an account of the configuration file or the command line "
            "there"
        )
    return found
