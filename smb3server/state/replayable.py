"""The answer to a CREATE that may be sent again. [MS-SMB2 3.3.5.9.10]"""

from __future__ import annotations

from smb3server.wire.create import CreateResponse
from smb3server.wire.create_contexts import RawContext

Key = tuple[bytes, bytes]
"""(ClientGuid, CreateGuid)."""


class Replayable:
    """The answer to a replayed CREATE. An open has one until it is first used (Open.IsReplayEligible)."""

    __slots__ = ("answers", "key", "response")

    def __init__(self, key: Key, response: CreateResponse, answers: list[RawContext]) -> None:
        self.key = key
        self.response = response
        self.answers = answers
        """Contexts that do not change with time."""
