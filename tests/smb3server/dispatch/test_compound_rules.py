"""Compounds with members that wait: rows M1 to M8 of docs/caching.md."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from smb3server.settings.server import Settings
from smb3server.wire import lock
from smb3server.wire.create import CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import lock_body
from tests.lab.rule_scene import ALL, RH, RWH, Ground, Peer, act, lease, query_info_body
from tests.lab.wire_client import ECHO, Client, Reply, compound, related

NONE = ((1 << 64) - 1, (1 << 64) - 1)
"""The FileId of a related command."""
CLOSE = struct.pack("<HHIQQ", 24, 0, 0, *NONE)
GETINFO = query_info_body(NONE, FileInfoClass.STANDARD)
FLUSH = struct.pack("<HHIQQ", 24, 0, 0, *NONE)
LOCK = lock_body(NONE, lock.LockElement(0, 1, 2))
NOTIFY = struct.pack("<HHIQQII", 32, 0, 1024, *NONE, 1, 0)
READ_PIPE = struct.pack("<HBBIQQQIIIHHB", 49, 80, 0, 1024, 0, *NONE, 0, 0, 0, 0, 0, 0)
DIRECTORY = int(CreateOptions.DIRECTORY_FILE)
CANCELLED, PENDING = int(NtStatus.CANCELLED), int(NtStatus.PENDING)
Member = tuple[int, bytes]


async def send(client: Client, first: bytes, *others: Member) -> list[int]:
    """Send a CREATE and commands related to it as one message. Return the MessageIds."""
    begin = client.message_id
    parts = [client.build(Command.CREATE, first), *(related(client, *member) for member in others)]
    await client.frame(compound(client, *parts))
    return list(range(begin, client.message_id))


async def messages(client: Client, count: int) -> list[list[Reply]]:
    """Messages until ``count`` commands have got their final answer, without notifications."""
    found: list[list[Reply]] = []
    while count:
        message = await client.receive_compound()
        if message[0].header.command == Command.OPLOCK_BREAK:
            continue
        count -= sum(reply.status != PENDING for reply in message)
        found.append(message)
    return found


def statuses(found: list[list[Reply]]) -> list[int]:
    return [reply.status for message in found for reply in message]


def is_related(reply: Reply) -> bool:
    return bool(reply.header.flags & HeaderFlags.RELATED_OPERATIONS)


async def leased(ground: Ground, name: str = "f") -> Peer:
    """A client whose lease a CREATE of another breaks, and makes it wait."""
    holder = await ground.peer()
    await holder.make(name, lease(1))
    return holder


def test_m1_m2_m4_a_create_in_front_waits_and_all_behind_it_wait_with_it(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder = await leased(ground)
        client = (await ground.peer()).client
        sent = await send(client, Peer.request("f"), (Command.QUERY_INFO, GETINFO), (Command.CLOSE, CLOSE))
        assert await holder.told() == [(1, RWH, RH)]
        [interim] = await client.receive_compound()
        assert (interim.status, interim.header.message_id) == (PENDING, sent[0])
        assert await holder.acknowledge(1, RH) == 0
        found = await messages(client, 3)
        assert statuses(found) == [0, 0, 0]
        replies = [reply for message in found for reply in message]
        assert [reply.header.message_id for reply in replies] == sent
        # All but the first are marked.
        assert [is_related(reply) for reply in replies] == [False, True, True]
        # The ids of the session and the tree, too, are those of the member before.
        assert {reply.header.session_id for reply in replies} == {client.session_id}
        assert replies[1].header.tree_id == client.tree_id

    act(tmp_path, scene)


def test_m3_the_interim_reply_goes_alone(tmp_path: Path) -> None:
    """What was ready goes before it, and what is ready afterwards in one message."""

    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        held = (await other.make("f")).file
        assert await other.lock(held) == 0
        members = [(Command.QUERY_INFO, GETINFO), (Command.LOCK, LOCK), (Command.QUERY_INFO, GETINFO)]
        await send(peer.client, Peer.request("f"), *members, (Command.CLOSE, CLOSE))
        ready = await peer.client.receive_compound()
        assert [reply.status for reply in ready] == [0, 0]
        assert [reply.status for reply in await peer.client.receive_compound()] == [PENDING]
        assert await other.unlock(held) == 0
        assert [len(message) for message in await messages(peer.client, 3)] == [1, 2]

    act(tmp_path, scene)


async def who_waits(ground: Ground, kind: str) -> tuple[Peer, bytes, list[Member], int]:
    """A client, the members of a compound, and the index of the one that waits for others."""
    peer = await ground.peer()
    info, close = (int(Command.QUERY_INFO), GETINFO), (int(Command.CLOSE), CLOSE)
    if kind == "create":
        await leased(ground)
        return peer, Peer.request("f"), [info, close], 0
    if kind.startswith("lock"):
        other = await ground.peer()
        assert await other.lock((await other.make("f")).file) == 0
        waits = (int(Command.LOCK), LOCK)
        return (
            peer,
            Peer.request("f"),
            [info, waits] if kind == "lock, last" else [waits, info, close],
            2 if "last" in kind else 1,
        )
    if kind == "pipe":
        assert (await peer.client.tree_connect("IPC$")).status == 0
        return peer, Peer.request("srvsvc"), [(int(Command.READ), READ_PIPE), close], 1
    return peer, Peer.request("", create_options=DIRECTORY), [info, (int(Command.CHANGE_NOTIFY), NOTIFY)], 2


@pytest.mark.parametrize("interim", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("kind", ["create", "lock, last", "lock", "pipe", "notify"])
def test_m5_m6_cancel_of_a_member_before_and_after_its_interim_reply(tmp_path: Path, kind: str, interim: bool) -> None:
    """It ends that member alone. Those behind it end as well: after a failed CREATE with its status."""

    async def scene(ground: Ground) -> None:
        if not interim:
            ground.service.server.settings.interim_delay = 60
        peer, first, members, index = await who_waits(ground, kind)
        client = peer.client
        sent = await send(client, first, *members)
        last = index == len(members)
        found: list[Reply] = []
        if interim or last:
            while not found or found[-1].status != PENDING:
                found += await client.receive_compound()
        if interim:
            flags = int(HeaderFlags.ASYNC_COMMAND)
            tree, process = found[-1].header.async_id >> 32, found[-1].header.async_id & 0xFFFFFFFF
            cancel = client.build(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=0, flags=flags)
            cancel = cancel[:32] + struct.pack("<II", process, tree) + cancel[40:]
        else:
            cancel = client.build(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=sent[index])
        await client.frame(client.signed(cancel))
        final = sum(reply.status != PENDING for reply in found)
        found += [reply for message in await messages(client, len(sent) - final) for reply in message]
        assert sum(reply.status == PENDING for reply in found) == (interim or last)
        answers = {reply.header.message_id: reply.status for reply in found if reply.status != PENDING}
        behind = CANCELLED if index == 0 else 0
        assert [answers[number] for number in sent] == [
            0 if place < index else CANCELLED if place == index else behind for place in range(len(sent))
        ]
        # Nothing is left behind: the connection serves on, and a later CANCEL of the same member does nothing.
        await client.frame(client.signed(cancel))
        assert (await client.call(Command.ECHO, ECHO)).status == 0

    act(tmp_path, scene, Settings())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_m6_cancel_of_a_member_that_does_not_wait_ends_nothing(tmp_path: Path, place: int) -> None:
    async def scene(ground: Ground) -> None:
        holder = await leased(ground)
        client = (await ground.peer()).client
        other = await holder.make("g")
        assert await holder.close(other.file) == 0
        sent = await send(client, Peer.request("g"), (Command.LOCK, LOCK), (Command.CLOSE, CLOSE))
        cancel = client.build(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=sent[place])
        await client.frame(client.signed(cancel))
        assert statuses(await messages(client, 3)) == [0, 0, 0]

    act(tmp_path, scene)


def test_m6_a_member_behind_the_one_that_waits_is_not_cancelled_yet(tmp_path: Path) -> None:
    """It has not begun, so there is nothing to cancel: it is answered in its turn."""

    async def scene(ground: Ground) -> None:
        holder = await leased(ground)
        client = (await ground.peer()).client
        sent = await send(client, Peer.request("f"), (Command.QUERY_INFO, GETINFO), (Command.CLOSE, CLOSE))
        assert (await client.receive()).status == PENDING
        for number in sent[1:]:
            cancel = client.build(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=number)
            await client.frame(client.signed(cancel))
        assert (await holder.told())[0][0] == 1
        assert await holder.acknowledge(1, RH) == 0
        assert statuses(await messages(client, 3)) == [0, 0, 0]

    act(tmp_path, scene)


def test_m5_a_create_that_fails_late_fails_what_needs_its_file(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder = await ground.peer()
        held = await holder.make("f", lease(1), share_access=0)
        client = (await ground.peer()).client
        await send(client, Peer.request("f"), (Command.QUERY_INFO, GETINFO), (Command.CLOSE, CLOSE))
        assert (await client.receive()).status == PENDING
        assert (await holder.told())[0][0] == 1
        assert await holder.acknowledge(1, RWH & ~2) == 0
        violation = int(NtStatus.SHARING_VIOLATION)
        assert statuses(await messages(client, 3)) == [violation] * 3
        assert await holder.close(held.file) == 0

    act(tmp_path, scene)


def test_m7_a_change_notify_with_members_behind_it_does_not_wait(tmp_path: Path) -> None:
    """A FLUSH does: it ends by itself."""

    async def scene(ground: Ground) -> None:
        client = (await ground.peer()).client
        folder = Peer.request("", create_options=DIRECTORY)
        await send(client, folder, (Command.CHANGE_NOTIFY, NOTIFY), (Command.CLOSE, CLOSE))
        assert statuses(await messages(client, 3)) == [0, NtStatus.INTERNAL_ERROR, 0]
        await send(client, Peer.request("f"), (Command.FLUSH, FLUSH), (Command.FLUSH, FLUSH), (Command.CLOSE, CLOSE))
        assert [status for status in statuses(await messages(client, 4)) if status != PENDING] == [0] * 4

    act(tmp_path, scene)


def rename_body(name: str) -> bytes:
    path = name.encode("utf-16-le")
    data = struct.pack("<B7xQI", 1, 0, len(path)) + path
    head = struct.pack("<HBBIHHIQQ", 33, 1, FileInfoClass.RENAME, len(data), 96, 0, 0, *NONE)
    return head + data


@pytest.mark.parametrize("last", [True, False])
def test_m8_a_rename_that_waits_last_or_in_the_middle(tmp_path: Path, last: bool) -> None:
    async def scene(ground: Ground) -> None:
        holder = await ground.peer()
        await holder.make("f", lease(1, RH))
        client = (await ground.peer()).client
        behind = [] if last else [(int(Command.CLOSE), CLOSE)]
        first = Peer.request("f", desired_access=ALL, create_disposition=1)
        sent = await send(client, first, (Command.SET_INFO, rename_body("g")), *behind)
        while not (told := await holder.told()):
            pass
        assert told == [(1, RH, 1)]
        assert await holder.acknowledge(1, 1) == 0
        found = await messages(client, len(sent))
        assert [status for status in statuses(found) if status != PENDING] == [0] * len(sent)
        assert (ground.folder / "g").exists()

    act(tmp_path, scene)
