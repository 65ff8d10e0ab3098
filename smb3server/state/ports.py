"""Interfaces that higher rooms provide to the server's state."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Protocol

from smb3server.access.descriptor import SecurityDescriptor
from smb3server.access.identity import Identity
from smb3server.auth.users_file import StoredUser
from smb3server.state.objects import Open
from smb3server.state.share import Share


class NotStored(Protocol):
    """The reason why a change could not be stored."""

    @property
    def status(self) -> int:
        """NTSTATUS for the request that depends on the change."""


class Persistence(Protocol):
    """Keeps the stored state of persistent opens up to date."""

    @property
    def touches(self) -> int:
        """Number of changes reported so far."""

    @property
    def dirty(self) -> bool:
        """Whether there are changes that have not been sent to the store yet."""

    def changed(
        self, opened: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        """Store ``opened`` anew. Does nothing for opens that are not persistent.

        ``undo`` is called if the store fails. The request that made the change then fails as well. ``sync`` is called
        first, on a worker thread. Its failure counts as a failure of the store."""

    def closed(self, opened: Open) -> None:
        """Remove the stored record of a persistent open."""

    def abandon(self, opened: Open) -> None:
        """Write nothing more for an open that continues elsewhere. Its stored record stays."""

    def when_stored(self, since: int, callback: Callable[[NotStored | None], None]) -> None:
        """Call ``callback`` when all changes after the ``since``-th are stored, or have failed to be.

        The argument is the error if a request that depends on one of them must fail, else None."""

    def flush(self) -> None:
        """Send the changes to the store."""


class Homes(Protocol):
    """Shares that are made when their user connects to them."""

    def find(self, name: str, identity: Identity | None) -> Share | None:
        """Return the home share of this user, if it has this name and can be made."""


class Fence(Protocol):
    """Shows whether another node of a cluster may have taken over."""

    def expired(self) -> bool:
        """Return True when this node must no longer answer any client. To be called on the event loop only."""

    def passed(self) -> bool:
        """Return what ``expired`` does, on any thread."""


class ShareProblem(enum.Enum):
    """Why a share cannot be added, changed or removed while the server runs."""

    DUPLICATE = "there is a share of this name"
    UNKNOWN = "there is no share of this name"
    FIXED = "the configuration file decides about it"
    FORBIDDEN = "not there, or not for this user"
    NO_FOLDER = "no such directory"
    INVALID = "a setting is wrong"
    NOT_STORED = "it cannot be stored"


class ShareChangeError(Exception):
    """A share was not added, changed or removed. Nothing has changed. The text says why, and what to do."""

    def __init__(self, problem: ShareProblem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


class ShareAdministration(Protocol):
    """Adds, changes and removes shares for administrators. All methods raise ``ShareChangeError``."""

    async def add(self, name: str, path: str, options: Mapping[str, object], lasting: bool) -> None:
        """Add a share. ``options`` are keys of a share in the configuration file. ``lasting``: also after a restart."""

    async def change(self, name: str, options: Mapping[str, object | None]) -> None:
        """Change a share that was added at run time. None stands for the default of an option."""

    async def remove(self, name: str) -> None:
        """Remove a share that was added at run time."""

    async def make_temporary(self, name: str) -> None:
        """Forget a share that was added at run time at the next restart."""

    async def permit(self, name: str, permissions: SecurityDescriptor | None) -> None:
        """Set who may do what in a share, whoever added it. None allows everything."""

    def allows_folder(self, path: str) -> bool:
        """Return whether administrators may share this directory from afar."""


class AccountNotKept(Exception):
    """A change of the accounts was not made. The text says why."""


class AccountKeeper(Protocol):
    """Changes the accounts while the server runs. The methods block, and must not be called on the event loop.

    A change is stored and in effect when a method returns. All raise ``AccountNotKept``."""

    def add(self, user: StoredUser) -> None:
        """Add an account."""

    def change(self, name: str, change: Callable[[StoredUser], StoredUser]) -> None:
        """Replace an account with what ``change`` makes of it."""

    def remove(self, name: str) -> None:
        """Remove an account."""
