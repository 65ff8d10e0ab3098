"""The sender of a CREATE."""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access.caller import Caller
from smb3server.state.objects import Session, TreeConnect
from smb3server.wire.negotiate import Capability


class Opener(NamedTuple):
    """The session and tree connect of a new open, and properties of their connection."""

    session: Session
    tree: TreeConnect
    caller: Caller
    """The session's user, in the form that access checks take."""
    client_guid: bytes
    dialect: int
    server_capabilities: int
    """Connection.ServerCapabilities."""
    channel_sequence: int
    """ChannelSequence of the request."""

    @property
    def may_persist(self) -> bool:
        """Whether opens can be persistent: the share allows it, and the client knows about it. [MS-SMB2 3.3.5.9.10]"""
        return self.tree.share.stores_opens and bool(self.server_capabilities & Capability.PERSISTENT_HANDLES)
