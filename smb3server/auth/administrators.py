"""The users who may change the server from afar: add shares, end sessions, set the passwords of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smb3server.access.identity import Identity


class Administrators:
    """The administrators of one server. Without a list there are none."""

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        """``names``: a list of users in the form that ``Groups.expand`` returns."""
        self.names = names

    def include(self, identity: Identity | None) -> bool:
        """Return whether a user is an administrator. Guests and anonymous users never are: they have proved nothing."""
        return identity is not None and identity.is_on(self.names)
