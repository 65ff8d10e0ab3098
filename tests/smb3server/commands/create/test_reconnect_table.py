"""Every kind of reconnect to every kind of durable open. What is right is computed from the sections, condition by
condition, and not from the server. [MS-SMB2 3.3.5.6, 3.3.5.9.7, 3.3.5.9.12, 3.3.7.1]"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from smb3server.wire import create_contexts as wire
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.header import Command
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import RWH, FileId, Ground, Made, Peer, act, durable, key, lease, reconnect
from tests.lab.wire_client import ECHO

GUID, OTHER_GUID = 7, 8
LEASE_KEY, OTHER_KEY = 1, 2


@dataclass(frozen=True)
class Prepared:
    """How the durable open was made."""

    version: int
    caching: str
    """"batch", or a lease of version 1 or 2: "lease 1", "lease 2"."""


@dataclass(frozen=True)
class Attempt:
    """How the client comes back."""

    version: int
    caching: str
    """As ``Prepared.caching``, or "none"."""
    same_key: bool
    same_client: bool
    same_guid: bool
    same_user: bool
    same_name: bool


PREPARED = (
    Prepared(1, "batch"),
    Prepared(1, "lease 1"),
    Prepared(2, "batch"),
    Prepared(2, "lease 1"),
    Prepared(2, "lease 2"),
)


def attempts(prepared: Prepared) -> Iterator[Attempt]:
    """All that differ from the right one in at most two ways, and those of the other version."""
    for version, caching in itertools.product((1, 2), ("none", "batch", "lease 1", "lease 2")):
        for same in itertools.product((True, False), repeat=5):
            made = Attempt(version, caching, *same)
            wrong = same.count(False) + (caching != prepared.caching) + (version != prepared.version)
            meaningless = (not made.same_key and not caching.startswith("lease")) or (
                not made.same_guid and version == 1
            )
            if wrong <= 2 and not meaningless:
                yield made


def expected(prepared: Prepared, attempt: Attempt) -> int:
    """The status by the letter, for an open whose connection is lost."""
    not_found = int(NtStatus.OBJECT_NAME_NOT_FOUND)
    leased = prepared.caching.startswith("lease")
    asks_lease = attempt.caching.startswith("lease")
    # Open.Lease is not NULL, and Open.ClientGuid is another.
    if leased and not attempt.same_client:
        return not_found
    # Open.Lease is not NULL, and no lease of this version and key is named; or it is NULL, and one is.
    if leased and (attempt.caching != prepared.caching or not attempt.same_key):
        return not_found
    if not leased and asks_lease:
        return not_found
    # 3.3.5.9.12: Open.CreateGuid is not that of the context. An open of version 1 has none, which is zero.
    if attempt.version == 2 and (prepared.version == 1 or not attempt.same_guid):
        return not_found
    if not attempt.same_user:
        return int(NtStatus.ACCESS_DENIED)
    # Open.Lease.FileName is another. The section asks that of leases alone.
    if leased and not attempt.same_name:
        return int(NtStatus.INVALID_PARAMETER)
    return 0


def caching_of(kind: str, number: int) -> tuple[list[RawContext], int]:
    if kind == "lease 1":
        record = wire.Lease(key(number), RWH)
        return [RawContext(wire.REQUEST_LEASE, wire.LEASE_CODEC.pack(record))], int(OplockLevel.LEASE)
    if kind == "lease 2":
        return [lease(number, RWH)], int(OplockLevel.LEASE)
    return [], int(OplockLevel.BATCH if kind == "batch" else OplockLevel.NONE)


async def prepare(peer: Peer, prepared: Prepared, name: str) -> FileId:
    contexts, level = caching_of(prepared.caching, LEASE_KEY)
    contexts.append(durable(GUID) if prepared.version == 2 else RawContext(wire.DURABLE_REQUEST, bytes(16)))
    reply = await peer.call(Command.CREATE, peer.request(name, *contexts, requested_oplock_level=level))
    made = made_of(reply)
    assert made.status == 0
    return made.file


def made_of(reply: object) -> Made:
    return Made(reply)  # type: ignore[arg-type]


async def come_back(ground: Ground, peer: Peer, file: FileId, attempt: Attempt, name: str) -> Made:
    guid = peer.client.guid if attempt.same_client else None
    again = await ground.peer(guid, user="u" if attempt.same_user else "other")
    contexts, level = caching_of(attempt.caching, LEASE_KEY if attempt.same_key else OTHER_KEY)
    if attempt.version == 2:
        contexts.append(reconnect(file, GUID if attempt.same_guid else OTHER_GUID))
    else:
        record = wire.DurableReconnect(*file)
        contexts.append(RawContext(wire.DURABLE_RECONNECT, wire.DURABLE_RECONNECT_CODEC.pack(record)))
    body = again.request(name if attempt.same_name else "another", *contexts, requested_oplock_level=level)
    made = made_of(await again.call(Command.CREATE, body))
    if not made.status:
        assert made.file[0] == file[0]
        assert made.answer.oplock_level == (
            OplockLevel.BATCH if contexts[0].name != wire.REQUEST_LEASE else OplockLevel.LEASE
        )
        assert await again.write(made.file, b"after") == 0
        assert await again.close(made.file) == 0
    await ground.lose(again)
    return made


@pytest.mark.parametrize("prepared", PREPARED, ids=lambda prepared: f"v{prepared.version} {prepared.caching}")
def test_after_a_lost_connection(tmp_path: Path, prepared: Prepared) -> None:
    async def scene(ground: Ground) -> None:
        wrong = []
        (ground.folder / "another").touch()
        for number, attempt in enumerate(attempts(prepared)):
            name = f"f{number}"
            peer = await ground.peer()
            file = await prepare(peer, prepared, name)
            await ground.lose(peer)
            made = await come_back(ground, peer, file, attempt, name)
            if made.status != expected(prepared, attempt):
                wrong.append((attempt, NtStatus(made.status).name))
            # What was refused is still there for the right one.
            if made.status:
                right = Attempt(prepared.version, prepared.caching, True, True, True, True, True)
                assert (await come_back(ground, peer, file, right, name)).status == 0
        assert wrong == []

    act(tmp_path, scene)


@pytest.mark.parametrize("prepared", PREPARED, ids=lambda prepared: f"v{prepared.version} {prepared.caching}")
def test_after_a_logoff_and_beside_a_living_connection(tmp_path: Path, prepared: Prepared) -> None:
    """Open.Session is NULL after a logoff; while it is not, there is nothing to come back to."""

    async def scene(ground: Ground) -> None:
        right = Attempt(prepared.version, prepared.caching, True, True, True, True, True)
        peer = await ground.peer()
        file = await prepare(peer, prepared, "f")
        assert (await come_back(ground, peer, file, right, "f")).status == NtStatus.OBJECT_NAME_NOT_FOUND
        assert await peer.write(file, b"living") == 0
        assert (await peer.call(Command.LOGOFF, ECHO)).status == 0
        assert (await come_back(ground, peer, file, right, "f")).status == 0
        async with asyncio.timeout(5):
            assert (ground.folder / "f").read_bytes()[:5] == b"after"

    act(tmp_path, scene)
