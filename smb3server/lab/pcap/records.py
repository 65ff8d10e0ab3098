"""One line per command: a request joined to its responses, and to the RDMA that moved its data."""

from __future__ import annotations

from dataclasses import dataclass, field

from smb3server.lab.pcap.smb2 import CANCEL, COMMANDS, STATUS_MORE_PROCESSING
from smb3server.wire.status import NtStatus

_ERRORS = 0xC0000000
"""Statuses from here on have the severity of an error. [MS-ERREF 2.3]"""


def status_name(status: int) -> str:
    """Return the name of an NT status, or its number."""
    try:
        return f"STATUS_{NtStatus(status).name}"
    except ValueError:
        return f"{status:#010x}"


@dataclass
class CommandRecord:
    """One command."""

    connection: int
    number: int
    """Frame of the request; 0 if the capture does not have it."""
    time: float
    command: int
    message_id: int = 0
    reply: int = 0
    """Frame of the final response; 0 if the capture does not have it."""
    latency: float | None = None
    """Seconds from the request to the final response."""
    status: int | None = None
    session_id: int = 0
    tree_id: int = 0
    share: str = ""
    file: str = ""
    bytes: int = 0
    """Bytes read or written."""
    way: str = ""
    """How they went: rdma, inline, or nothing if there were none."""
    operations: list[int] = field(default_factory=list)
    """Frames of the RDMA Writes or Read Responses that moved them; the first of them."""
    operation_count: int = 0
    asynchronous: bool = False
    signed: bool = False
    encrypted: bool = False
    charge: int = 0
    requested: int = 0
    granted: int = 0

    @property
    def name(self) -> str:
        """The name of the command."""
        return COMMANDS[self.command] if self.command < len(COMMANDS) else f"{self.command:#x}"

    @property
    def status_name(self) -> str:
        """The name of the status; 'no response' if there is none."""
        return "no response" if self.status is None else status_name(self.status)

    @property
    def failed(self) -> bool:
        """Whether the status is an error, or the response is missing. [MS-ERREF 2.3]"""
        if self.status is None:
            return self.command != CANCEL  # Which has no response.
        return self.status >= _ERRORS and self.status != STATUS_MORE_PROCESSING

    def moved_by_rdma(self, size: int, operations: list[int], count: int) -> None:
        """Note the RDMA of this command."""
        self.way, self.bytes = "rdma", size
        self.operations, self.operation_count = operations, count
