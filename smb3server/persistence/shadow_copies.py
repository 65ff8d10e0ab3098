"""The sets of shadow copies in a file of the server's state: what a restart has to know of them. [MS-FSRVP 3.1.4]"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from smb3server.state.shadow_copies import ShadowCopy, ShadowCopySet, Stage

FILE_NAME = "shadow-copies.json"


def encode(sets: Iterable[ShadowCopySet]) -> bytes:
    """Return the content of the file."""
    return json.dumps([_as_data(found) for found in sets], indent=1).encode()


def read(state: Path) -> list[ShadowCopySet]:
    """Return the sets in the file of a state directory. Raises ``OSError``, and ``ValueError`` if it is damaged."""
    path = state / FILE_NAME
    try:
        return [_from_data(entry) for entry in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r})") from error


def held(state: Path, share: str) -> set[str]:
    """Return the names of the snapshots of a share that a backup program has not given back. Raises as ``read``."""
    copies = (copy for found in read(state) for copy in found.copies)
    return {copy.snapshot for copy in copies if copy.share.casefold() == share.casefold()}


def _as_data(found: ShadowCopySet) -> dict[str, Any]:
    copies = [
        {
            "id": str(copy.id),
            "share": copy.share,
            "unc": copy.unc,
            "volume": copy.volume,
            "created": copy.created,
            "seconds": copy.seconds,
            "snapshot": copy.snapshot,
        }
        for copy in found.copies
    ]
    finished = found.stage is Stage.RECOVERED
    return {"id": str(found.id), "context": found.context, "finished": finished, "copies": copies}


def _from_data(entry: dict[str, Any]) -> ShadowCopySet:
    copies = [
        ShadowCopy(
            uuid.UUID(copy["id"]),
            str(copy["share"]),
            str(copy["unc"]),
            str(copy["volume"]),
            float(copy["created"]),
            int(copy["seconds"]),
            str(copy["snapshot"]),
        )
        for copy in entry["copies"]
    ]
    stage = Stage.RECOVERED if entry["finished"] else Stage.COMMITTED
    return ShadowCopySet(uuid.UUID(entry["id"]), int(entry["context"]), stage, copies)
