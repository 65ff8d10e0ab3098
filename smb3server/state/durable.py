"""Durable, resilient and persistent opens: they outlive their connection, so that a client may come back to them.

While their client is away, durable opens give way to other openers. Resilient and persistent ones do not. Persistent
ones also outlive the server (``persistence``). [MS-SMB2 3.3.7.1 (loss of the connection), 3.3.2.2 to 3.3.2.4 (timers)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from smb3server.access.identity import Identity
from smb3server.files.caching import HANDLE, Holder, Timer
from smb3server.wire.create import CreateResponse
from smb3server.wire.create_contexts import RawContext


@dataclass(slots=True)
class HandleCounts:
    """Numbers of opens whose client was away, by outcome, since the server's start. Not in spec."""

    restored: int = 0
    """Read from the store, after a restart or from another node."""
    reconnected: int = 0
    """The client came back with a reconnect context."""
    replayed: int = 0
    """The client repeated the CREATE that it had no answer to."""
    expired: int = 0
    """The client did not come back in time."""


@dataclass(slots=True, eq=False)
class Durability:
    """What makes one open durable (Open.IsDurable, DurableOpenTimeout, CreateGuid, DurableOwner)."""

    owner: str
    """``Identity.owner`` of the user."""
    client_guid: bytes
    create_guid: bytes | None
    """None for version 1."""
    timeout: float
    """Seconds that it waits for its client."""
    disconnected: bool = False
    persistent: bool = False
    abandoned: bool = False
    """Its stored record stays for the next node, or the next run, that serves it."""
    resilient: bool = False
    timer: Timer | None = None
    """Ends the open when its client has not come back in time."""

    @property
    def kind(self) -> str:
        """One word for reports."""
        return "persistent" if self.persistent else "resilient" if self.resilient else "durable"

    def stop_timer(self) -> None:
        """Stop the clock that runs while the client is away."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()


def owner_of(identity: Identity | None) -> str:
    """Return Open.DurableOwner for a user."""
    return identity.owner if identity is not None else ""


def covers(holder: Holder[Any] | None) -> bool:
    """Return whether caching rights make an open durable: a batch oplock or handle caching.

    Without one of these, no break would ask the client to close the open for another opener."""
    return holder is not None and not holder.breaking and bool(holder.state & HANDLE)


Key = tuple[bytes, bytes]
"""(ClientGuid, CreateGuid)."""


class Replayable(NamedTuple):
    """The answer to a replayed CREATE. An open has one until it is first used (Open.IsReplayEligible)."""

    key: Key
    response: CreateResponse
    answers: list[RawContext]
    """Contexts that do not change with time."""
