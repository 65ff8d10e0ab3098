"""The stored record of a persistent open: everything that another server needs to continue it.

There is one record per open, and it is written anew whenever something in it changes. It is JSON, with bytes in
hexadecimal. It names the user of the open, but has no credentials: the server that restores it takes those of its own
account of that user.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from smb3server.access.descriptor import Sid
from smb3server.access.identity import Identity, Member
from smb3server.files.caching import Lease, Oplock
from smb3server.state import deletions
from smb3server.virtual_disks import stored

if TYPE_CHECKING:
    from smb3server.backends.base import Path
    from smb3server.state.objects import Open

FORMAT = 2
_READABLE = (1, 2)
"""Format 1 has credentials, which are not read."""
_LOCK = struct.Struct("<QQB")
_GUID_SIZE = _KEY_SIZE = 16
_BAD_PARTS = frozenset(["", ".", ".."])
"""Parts that a path must not have."""
_LONGEST_TIMEOUT = 24 * 3600.0
"""Seconds: much more than any client is granted."""
_MAX_SIDS = 4096
"""SIDs of a record. A token of Windows has 1024."""


class LockRecord(NamedTuple):
    """A byte-range lock: offset and length in bytes."""

    offset: int
    length: int
    exclusive: bool


class CachingRecord(NamedTuple):
    """An oplock (``key`` empty), or a lease. All opens of a lease store the same record of it."""

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
    """The record of one open. Names are those of ``objects.Open`` and ``durable.Durability``."""

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
    desired_access: int | None
    """None in records of servers that did not note it."""
    granted_access: int
    maximal_access: int
    share_access: int
    create_options: int
    create_action: int
    delete_on_close: bool
    delete_pending: bool
    name_deleted: bool
    """Of several names only the one of this open will be deleted."""
    caching: CachingRecord | None
    parent_lease_key: bytes | None
    locks: Sequence[LockRecord]
    lock_sequences: dict[int, int]
    app_instance_id: bytes | None
    app_instance_version: tuple[int, int] | None
    posix: bool
    """Whether it is a POSIX open. False in records of servers that had none."""
    virtual_disk: bytes | None
    """What ``virtual_disks.stored`` made of it, if it is an open of a virtual disk. Empty in records of
    servers that did not store it."""


_NO_CACHING = CachingRecord(0, False, 0, 0)


def key_of(prefix: str, persistent_id: int) -> str:
    """Return the store's key of an open. ``prefix``: that of its domain."""
    return f"{prefix}opens/{persistent_id:016x}"


def opens_prefix(prefix: str) -> str:
    """Return the prefix of the keys of all opens of a domain."""
    return f"{prefix}opens/"


def snapshot(opened: Open) -> bytes:
    """Return the record of an open as it is now.

    Raises ``ValueError`` unless the open is persistent and has its file open."""
    durable, file, handle, device = opened.durable, opened.file, opened.handle, opened.virtual_disk
    identity = opened.session.identity
    if durable is None or file is None or handle is None or identity is None:
        raise ValueError("not a persistent open")
    try:
        opened.path = handle.path
    except OSError:
        # The file has no name, or it cannot be found out now. The last known one may still be right.
        pass
    locks = b"".join(_LOCK.pack(lock.offset, lock.length, lock.exclusive) for lock in file.locks.locks_of(opened))
    record: dict[str, Any] = {
        "format": FORMAT,
        "id": opened.file_id[0],
        "share": opened.tree.share.name,
        "path": opened.path,
        "stream": file.stream,
        "inode": file.key.inode,
        "directory": opened.is_directory,
        "create_guid": (durable.create_guid or bytes(16)).hex(),
        "client_guid": durable.client_guid.hex(),
        "identity": [identity.name, identity.domain, identity.guest, identity.anonymous],
        "member": _member_record(identity.member) if identity.member is not None else None,
        "timeout": durable.timeout,
        "access": [opened.granted_access, opened.maximal_access, opened.share_access],
        "desired": opened.desired_access,
        "options": opened.create_options,
        "action": opened.create_action,
        "delete": [opened.delete_on_close, deletions.of_open(opened)],
        "name_deleted": not file.delete_pending and deletions.of_open(opened),
        "caching": _caching(opened.caching),
        "parent_lease_key": opened.parent_lease_key.hex() if opened.parent_lease_key is not None else None,
        "locks": base64.b64encode(locks).decode(),
        "sequences": list(opened.lock_sequences.items()),
        "app": opened.app_instance_id.hex() if opened.app_instance_id is not None else None,
        "app_version": opened.app_instance_version,
        "posix": opened.posix,
        "virtual_disk": base64.b64encode(stored.pack(device)).decode() if device is not None else None,
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


def _member_record(member: Member) -> list[str]:
    return [str(sid) for sid in (member.sid, member.primary_group, *sorted(member.groups))]


def _member(record: Any) -> Member | None:
    """Return a user of a domain, without the lists that it is on. Raises ``ValueError``."""
    if record is None:
        return None
    sid, primary, *groups = (Sid.parse(text) for text in record[:_MAX_SIDS])
    return Member(sid, primary, frozenset(groups))


def _disk(record: Any) -> bytes | None:
    """Return what is stored of an open of a disk. An older version has written True alone."""
    if not record:
        return None
    return b"" if record is True else base64.b64decode(record, validate=True)


def parse(data: bytes) -> OpenRecord:
    """Parse a record. Raises ``ValueError`` if this version does not understand it."""
    try:
        record = json.loads(data)
        if record["format"] not in _READABLE:
            raise ValueError(f"format {record['format']}")
        name, domain, guest, anonymous = record["identity"]
        version = record["app_version"]
        # Records that an older version has written do not have this and ``name_deleted``.
        parent = record.get("parent_lease_key")
        found = OpenRecord(
            persistent_id=record["id"],
            share=record["share"],
            path=tuple(record["path"]),
            stream=record["stream"],
            inode=record["inode"],
            is_directory=record["directory"],
            create_guid=bytes.fromhex(record["create_guid"]),
            client_guid=bytes.fromhex(record["client_guid"]),
            identity=Identity(name, domain, guest, anonymous, member=_member(record.get("member"))),
            timeout=record["timeout"],
            desired_access=record.get("desired"),
            granted_access=record["access"][0],
            maximal_access=record["access"][1],
            share_access=record["access"][2],
            create_options=record["options"],
            create_action=record["action"],
            delete_on_close=record["delete"][0],
            delete_pending=record["delete"][1],
            name_deleted=record.get("name_deleted", False),
            caching=CachingRecord(*record["caching"]) if record["caching"] else None,
            parent_lease_key=bytes.fromhex(parent) if parent is not None else None,
            locks=[LockRecord(o, n, bool(e)) for o, n, e in _LOCK.iter_unpack(base64.b64decode(record["locks"]))],
            lock_sequences={int(index): int(number) for index, number in record["sequences"]},
            app_instance_id=bytes.fromhex(record["app"]) if record["app"] is not None else None,
            app_instance_version=(version[0], version[1]) if version is not None else None,
            posix=record.get("posix", False),
            virtual_disk=_disk(record.get("virtual_disk")),
        )
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ValueError(f"not a record of an open: {error!r}") from error
    _check(found)
    return found


def _check(record: OpenRecord) -> None:
    """Raise ``ValueError`` for a record that no server can have written.

    It has to be fast, because there may be tens of thousands of records."""
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
        record.desired_access or 0,
        caching.state,
        caching.requested,
        caching.required,
        caching.level,
        caching.version,
        caching.epoch,
    )
    texts = (record.share, record.stream, identity.name, identity.domain, caching.key, caching.client_guid)
    deleted = record.delete_on_close, record.delete_pending, record.name_deleted
    flags = record.is_directory, *deleted, identity.guest, identity.anonymous, record.posix
    path = record.path
    if (
        {*map(type, numbers)} != {int}
        or min(numbers) < 0
        or max(numbers) >> 64
        or {*map(type, texts), *map(type, path)} != {str}
        or not {*map(type, flags), type(caching.breaking)} <= {bool, int}
        or not (caching.parent_key is None or isinstance(caching.parent_key, str))
        or not (record.parent_lease_key is None or len(record.parent_lease_key) == _KEY_SIZE)
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
