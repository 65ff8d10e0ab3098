"""What is stored of a persistent open: everything that a server which never saw it needs to go on with it.

One record per open, written anew whenever something in it changes. JSON; bytes in hexadecimal. Who has the open is in
it, the credentials to act with are not: they are those of the account on the server that restores it.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from smb3server.access.identity import Identity
from smb3server.files.caching import Lease, Oplock

if TYPE_CHECKING:
    from smb3server.backends.base import Path
    from smb3server.state.objects import Open

FORMAT = 2
_READABLE = (1, 2)
"""Format 1 has credentials in it, which are not read."""
_LOCK = struct.Struct("<QQB")
_GUID_SIZE = 16
_BAD_PARTS = frozenset(["", ".", ".."])
"""Of a path."""
_LONGEST_TIMEOUT = 24 * 3600.0
"""Seconds; far beyond what a client is granted."""


class LockRecord(NamedTuple):
    offset: int
    length: int
    exclusive: bool


class CachingRecord(NamedTuple):
    """An oplock (``key`` empty), or an open's share of a lease, which all opens of the lease store alike."""

    state: int
    breaking: bool
    requested: int
    required: int
    level: int = 0
    key: str = ""
    client_guid: str = ""
    version: int = 0
    epoch: int = 0
    parent_key: str = ""


@dataclass(slots=True)
class OpenRecord:
    """Names are those of ``open.Open`` and ``durable.Durability``."""

    persistent_id: int
    share: str
    path: Path
    stream: str
    inode: int
    is_directory: bool
    create_guid: bytes
    client_guid: bytes
    identity: Identity
    timeout: float
    granted_access: int
    maximal_access: int
    share_access: int
    create_options: int
    create_action: int
    delete_on_close: bool
    delete_pending: bool
    caching: CachingRecord | None
    locks: Sequence[LockRecord]
    lock_sequences: dict[int, int]
    app_instance_id: bytes | None
    app_instance_version: tuple[int, int] | None


_NO_CACHING = CachingRecord(0, False, 0, 0)


def key_of(prefix: str, persistent_id: int) -> str:
    return f"{prefix}opens/{persistent_id:016x}"


def opens_prefix(prefix: str) -> str:
    return f"{prefix}opens/"


def snapshot(entry: Open) -> bytes:
    """The record of an open as it is now. The open is a persistent one, of a file that is still open."""
    durable, file, handle = entry.durable, entry.file, entry.handle
    identity = entry.session.identity
    if durable is None or file is None or handle is None or identity is None:
        raise ValueError("not a persistent open")
    try:
        entry.path = handle.path
    except OSError:
        # The name is gone, or cannot be told now: the last one known may still do.
        pass
    locks = b"".join(_LOCK.pack(lock.offset, lock.length, lock.exclusive) for lock in file.locks.locks_of(entry))
    record: dict[str, Any] = {
        "format": FORMAT,
        "id": entry.file_id[0],
        "share": entry.tree.share.name,
        "path": entry.path,
        "stream": file.stream,
        "inode": file.key.inode,
        "directory": entry.is_directory,
        "create_guid": (durable.create_guid or bytes(16)).hex(),
        "client_guid": durable.client_guid.hex(),
        "identity": [identity.name, identity.domain, identity.guest, identity.anonymous],
        "timeout": durable.timeout,
        "access": [entry.granted_access, entry.maximal_access, entry.share_access],
        "options": entry.create_options,
        "action": entry.create_action,
        "delete": [entry.delete_on_close, file.delete_pending],
        "caching": _caching(entry.caching),
        "locks": base64.b64encode(locks).decode(),
        "sequences": list(entry.lock_sequences.items()),
        "app": entry.app_instance_id.hex() if entry.app_instance_id is not None else None,
        "app_version": entry.app_instance_version,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _caching(holder: Lease[Open] | Oplock[Open] | None) -> CachingRecord | None:
    if holder is None:
        return None
    common = (holder.state, holder.breaking, holder.requested, holder.required)
    if isinstance(holder, Oplock):
        return CachingRecord(*common, level=holder.level)
    return CachingRecord(
        *common,
        key=holder.key.hex(),
        client_guid=holder.client_guid.hex(),
        version=holder.version,
        epoch=holder.epoch,
        parent_key=holder.parent_key.hex() if holder.parent_key is not None else "",
    )


def parse(data: bytes) -> OpenRecord:
    """Raises ``ValueError`` for what this version does not understand."""
    try:
        record = json.loads(data)
        if record["format"] not in _READABLE:
            raise ValueError(f"format {record['format']}")
        name, domain, guest, anonymous = record["identity"]
        version = record["app_version"]
        found = OpenRecord(
            persistent_id=record["id"],
            share=record["share"],
            path=tuple(record["path"]),
            stream=record["stream"],
            inode=record["inode"],
            is_directory=record["directory"],
            create_guid=bytes.fromhex(record["create_guid"]),
            client_guid=bytes.fromhex(record["client_guid"]),
            identity=Identity(name, domain, guest, anonymous),
            timeout=record["timeout"],
            granted_access=record["access"][0],
            maximal_access=record["access"][1],
            share_access=record["access"][2],
            create_options=record["options"],
            create_action=record["action"],
            delete_on_close=record["delete"][0],
            delete_pending=record["delete"][1],
            caching=CachingRecord(*record["caching"]) if record["caching"] else None,
            locks=[LockRecord(o, n, bool(e)) for o, n, e in _LOCK.iter_unpack(base64.b64decode(record["locks"]))],
            lock_sequences={int(index): int(number) for index, number in record["sequences"]},
            app_instance_id=bytes.fromhex(record["app"]) if record["app"] is not None else None,
            app_instance_version=(version[0], version[1]) if version is not None else None,
        )
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ValueError(f"not a record of an open: {error!r}") from error
    _check(found)
    return found


def _check(record: OpenRecord) -> None:
    """Raises ``ValueError`` for what no server has written. Fast, for there may be tens of thousands."""
    identity, caching = record.identity, record.caching or _NO_CACHING
    numbers = (
        record.persistent_id,
        record.inode,
        record.granted_access,
        record.maximal_access,
        record.share_access,
        record.create_options,
        record.create_action,
        *(record.app_instance_version or ()),
        caching.state,
        caching.requested,
        caching.required,
        caching.level,
        caching.version,
        caching.epoch,
    )
    texts = (record.share, record.stream, identity.name, identity.domain, caching.key, caching.client_guid)
    flags = record.is_directory, record.delete_on_close, record.delete_pending, identity.guest, identity.anonymous
    path = record.path
    if (
        {*map(type, numbers)} != {int}
        or min(numbers) < 0
        or max(numbers) >> 64
        or {*map(type, texts), *map(type, path)} != {str}
        or not {*map(type, flags), type(caching.breaking)} <= {bool, int}
        or not (caching.parent_key is None or isinstance(caching.parent_key, str))
        or len(record.create_guid) != _GUID_SIZE
        or len(record.client_guid) != _GUID_SIZE
        or not (record.app_instance_id is None or len(record.app_instance_id) == _GUID_SIZE)
        or not _BAD_PARTS.isdisjoint(path)
        or "/" in "".join(path)
        or "\0" in "".join(path)
        or not isinstance(record.timeout, int | float)
        or not 0 <= record.timeout <= _LONGEST_TIMEOUT
    ):
        raise ValueError("not a record of an open")
