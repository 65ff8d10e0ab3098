"""What the server's state needs of the rooms above it, which provide it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from smb3server.state.objects import Open


class NotStored(Protocol):
    """Why a change could not be stored."""

    @property
    def status(self) -> int:
        """NTSTATUS for the request that depends on the change."""
        ...


class Persistence(Protocol):
    """Keeps the stored state of persistent opens up to date."""

    @property
    def touches(self) -> int:
        """Changes reported so far."""
        ...

    @property
    def dirty(self) -> bool:
        """Whether something has changed that is not on its way to the store yet."""
        ...

    def changed(
        self, opened: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        """Store ``opened`` anew; does nothing for opens that are not persistent.

        ``undo`` is called if the store fails; the request that made the change fails as well then. ``sync`` is called
        first, on a worker thread; its failure counts as the store's."""
        ...

    def closed(self, opened: Open) -> None:
        """Remove what is stored of a persistent open."""
        ...

    def abandon(self, opened: Open) -> None:
        """Write nothing more for an open that continues elsewhere; what is stored of it stays."""
        ...

    def when_stored(self, since: int, callback: Callable[[NotStored | None], None]) -> None:
        """Call ``callback`` when all changes after the ``since``-th are stored, or could not be: with the error if a
        request that depends on one of them must fail."""
        ...

    def flush(self) -> None:
        """Send what has changed on its way to the store."""
        ...


class Fence(Protocol):
    """Says whether another node of a cluster may have taken over."""

    def expired(self) -> bool:
        """Return True when this node must not answer anybody any more."""
        ...
