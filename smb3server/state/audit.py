"""Who did what in a share: records for an auditor, which are not the log.

A share names the kinds of events that are recorded. Records are plain data; where they go is the sink's concern. A
share without an audit has none of these objects, and pays for one comparison with None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from smb3server.state.windows_events import AUDIT_EVENTS, fields_of

CONNECT, OPEN, CREATE, WRITE = "connect", "open", "create", "write"
DELETE, RENAME, PERMISSION, DENIED = "delete", "rename", "permission", "denied"
SACL = "sacl"
"""What the SACL of a file asks for. [MS-DTYP 2.4.4.10]"""
KINDS = (CONNECT, OPEN, CREATE, WRITE, DELETE, RENAME, PERMISSION, DENIED, SACL)


class Sink(Protocol):
    """Takes records. It must not block."""

    def put(self, record: Mapping[str, object]) -> None: ...


@dataclass(frozen=True, slots=True)
class ShareAudit:
    """What is recorded of one share, and where."""

    kinds: frozenset[str]
    sink: Sink


def record(share: ShareAudit, kind: str, fields: Mapping[str, object], result: str, case: str = "") -> None:
    """Record an event if the share's audit includes its kind. ``result``: "success", or the name of a status.

    ``case``: tells apart what Windows has several numbers for."""
    if kind in share.kinds:
        share.sink.put({"event": kind, **fields, "result": result, **fields_of(AUDIT_EVENTS.get((kind, case)))})
