"""Identifies a CREATE that is sent again by its CreateGuid. [MS-SMB2 3.3.5.9.10]"""

from __future__ import annotations

from smb3server.commands.create.contexts import CreateContexts
from smb3server.files.caching import LEVEL_STATES, Lease
from smb3server.state.durable import Key
from smb3server.state.objects import Open
from smb3server.wire.create import Access
from smb3server.wire.oplock_break import OplockLevel

_MAKES_ELIGIBLE = int(Access.READ_DATA | Access.EXECUTE | Access.WRITE_DATA | Access.APPEND_DATA | Access.DELETE)


def key_of(client_guid: bytes, asked: CreateContexts) -> Key | None:
    """Return the key that identifies a CREATE. None means that it cannot be replayed."""
    wanted = asked.durable_v2
    return (client_guid, wanted.create_guid) if wanted is not None else None


def is_eligible(opened: Open) -> bool:
    """Return whether the CREATE of an open of a file may be replayed (Open.IsReplayEligible)."""
    if opened.durable is not None and opened.durable.persistent:
        return True
    return not opened.is_directory and bool(opened.granted_access & _MAKES_ELIGIBLE)


def level_for(opened: Open, requested: int) -> int:
    """Return the OplockLevel for the response to a replay: the level that it requests, if the open holds as much."""
    held = opened.caching
    if held is None:
        return OplockLevel.NONE
    if isinstance(held, Lease):
        return OplockLevel.LEASE
    wanted = LEVEL_STATES.get(requested)
    if wanted is not None and not wanted & ~held.state:
        return requested
    return next((level for level, state in LEVEL_STATES.items() if state == held.state), OplockLevel.NONE)
