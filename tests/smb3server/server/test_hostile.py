"""Clients that mean harm, with and without a password: what they can make the server hold, do or say."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import struct
import time
import uuid
from collections.abc import Awaitable, Callable

import pytest
import spnego

from smb3server.commands import query_directory
from smb3server.files.searches import compile_expression
from smb3server.net.tcp import HIGH_WATER_UNAUTHENTICATED
from smb3server.settings.server import Settings
from smb3server.state.objects import Connection, Session
from smb3server.wire.header import HEADER_SIZE, Command, HeaderFlags
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.wire_client import (
    ECHO,
    NO_FILE,
    Client,
    Harness,
    Reply,
    context,
    contexts_for,
    create_body,
    drive,
    ioctl_body,
    negotiate_body,
    setup_body,
)

Test = Callable[[Harness], Awaitable[None]]


def file_id_of(reply: Reply) -> bytes:
    assert reply.status == 0
    return reply.body[64:80]


# What strangers can make the server hold


def test_failed_logons_leave_no_session_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Each one has a timer; it must not keep what it is about."""
    # What is captured keeps the errors, whose tracebacks keep everything.
    caplog.set_level(logging.CRITICAL)

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        for _ in range(40):
            await client.call(Command.SESSION_SETUP, setup_body(b"garbage"))
        gc.collect()
        assert not harness.server.sessions.by_id
        assert sum(isinstance(entry, Session) and entry.server is harness.server for entry in gc.get_objects()) <= 1

    drive(test)


def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    async def test(harness: Harness) -> None:
        for _ in range(30):
            client = await harness.connect()
            await client.negotiate()
            client.writer.close()
            await client.writer.wait_closed()
        await harness.settled()
        await asyncio.sleep(0)
        gc.collect()
        kept = [entry for entry in gc.get_objects() if isinstance(entry, Connection) and entry.server is harness.server]
        assert len(kept) <= 1

    drive(test)


def test_a_stranger_that_does_not_read_is_not_read_from() -> None:
    """Replies that wait for it are memory; before a logon that is little."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        (connection,) = harness.server.connection_list
        transport = connection.transport
        sent = 0
        try:
            async with asyncio.timeout(1):
                while True:
                    message = client.build(Command.ECHO, ECHO, credits=1)
                    client.writer.write(len(message).to_bytes(4, "big") + message)
                    sent += 1
                    if sent % 64 == 0:
                        await client.writer.drain()
                        if transport.pending_send_bytes > HIGH_WATER_UNAUTHENTICATED:
                            await asyncio.sleep(0.05)
                            break
        except TimeoutError:
            pass
        assert transport.pending_send_bytes < 2 * HIGH_WATER_UNAUTHENTICATED
        client.writer.transport.abort()

    drive(test)


@pytest.mark.parametrize("count", [1000, 7000])
def test_negotiate_contexts_by_the_thousand(count: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        contexts = contexts_for() + [context(0x4000 + index % 1000, b"") for index in range(count)]
        begun = time.monotonic()
        reply = await client.call(Command.NEGOTIATE, negotiate_body((0x0311,), contexts), session_id=0)
        assert reply.status == 0
        assert time.monotonic() - begun < 2

    drive(test)


def test_dialects_and_algorithms_by_the_thousand() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        many = context(2, struct.pack("<H", 20000) + b"\x99\x99" * 19999 + b"\2\0")
        body = negotiate_body((0x0311, *[0x4444] * 5000), [contexts_for()[0], many])
        assert (await client.call(Command.NEGOTIATE, body, session_id=0)).status == 0

    drive(test)


def test_credits_before_a_logon() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        for _ in range(5):
            await client.call(Command.ECHO, ECHO, credits=65535)
        (connection,) = harness.server.connection_list
        assert connection.command_sequence_window.available <= harness.server.settings.credits_before_authentication

    drive(test)


@pytest.mark.parametrize(
    "frame",
    [
        b"\xfdSMB",
        b"\xfdSMB" + bytes(47),
        b"\xfdSMB" + bytes(48),
        b"\xfdSMB" + bytes(48) + b"\xfeSMB" + bytes(60),
        b"\xfcSMB" + bytes(80),
        b"\xfeSMB" + bytes(59),
        b"\xfeSMB",
        b"\xfe",
        b"",
    ],
)
def test_half_messages_disconnect(frame: bytes) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        await client.frame(frame)
        assert await client.closed()

    drive(test)


@pytest.mark.parametrize("cut", [1, 16, 40, 51, 60])
def test_half_transforms_of_a_session_disconnect(cut: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        sealed = client.sealed(client.build(Command.ECHO, ECHO))
        await client.frame(sealed[:-cut])
        assert await client.closed()
        assert not harness.server.sessions.by_id

    drive(test)


# Limits of those who logged on


def test_sessions_trees_and_opens_are_limited() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        for index in range(4):
            assert (await client.open(f"file{index}")).status == 0
        assert (await client.open("one too many")).status == NtStatus.INSUFFICIENT_RESOURCES
        assert [(await client.tree_connect()).status for _ in range(3)] == [0, 0, NtStatus.INSUFFICIENT_RESOURCES]
        token = spnego.client("u", "pw", protocol="ntlm").step() or b""
        body = setup_body(token)
        statuses = [(await client.call(Command.SESSION_SETUP, body, session_id=0)).status for _ in range(2)]
        assert statuses == [NtStatus.MORE_PROCESSING_REQUIRED, NtStatus.INSUFFICIENT_RESOURCES]

    drive(test, Settings(max_opens=4, max_trees=3, max_sessions=2))


def test_opens_of_all_clients_are_limited() -> None:
    """What descriptors there are must be enough for connections, too."""

    async def test(harness: Harness) -> None:
        harness.server.opens.limit = 3
        first, second = await harness.connect(), await harness.connect()
        await first.login()
        await second.login()
        assert [(await first.open(f"a{index}")).status for index in range(2)] == [0, 0]
        assert (await second.open("b")).status == 0
        assert (await second.open("c")).status == NtStatus.INSUFFICIENT_RESOURCES
        await first.call(Command.LOGOFF, ECHO)
        assert (await second.open("c")).status == 0

    drive(test)


@pytest.mark.parametrize(
    "name", ["*" * 5000 + "a", "*a" * 500, "?" * 10000, "<" * 1000 + "x", ">" * 900 + '"x', "a*" * 9000]
)
def test_patterns_that_are_meant_to_take_long(name: str) -> None:
    """Time to match is bounded by a small multiple of the name's length; what no name can match is no name."""
    begun = time.monotonic()
    try:
        matches = compile_expression(name)
    except StatusError as error:
        assert error.status == NtStatus.OBJECT_NAME_INVALID
    else:
        for letter in "ab.":
            matches(letter * 255)
    assert time.monotonic() - begun < 0.5


def test_a_long_search_lets_others_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that matches nothing in a large folder: who asks something meanwhile is answered meanwhile; searches of
    one open go one after the other, and each entry comes once."""
    monkeypatch.setattr(query_directory, "TURN", 0.0)

    async def test(harness: Harness) -> None:
        searcher, other = await harness.connect(), await harness.connect()
        await searcher.login()
        await other.login()
        directory = file_id_of(await searcher.open("folder", 2, 0x120089, 1))
        names = {f"file{number}" for number in range(300)}
        for name in names:
            reply = await searcher.open(f"folder\\{name}", 2)
            await searcher.call(Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, file_id_of(reply)))

        def search(pattern: str, flags: int, size: int = 2000) -> bytes:
            raw = pattern.encode("utf-16-le")
            return struct.pack("<HBBI16sHHI", 33, 12, flags, 0, directory, 96, len(raw), size) + raw

        await searcher.post(Command.QUERY_DIRECTORY, search("nothing*", 1))
        await other.call(Command.ECHO, ECHO)
        assert len(harness.server.connection_list) == 2
        assert (await searcher.receive()).status == NtStatus.NO_SUCH_FILE
        found: list[str] = []
        done = False
        flags = 1
        while not done:
            for _ in range(3):
                await searcher.post(Command.QUERY_DIRECTORY, search("file*", flags))
                flags = 0
            for _ in range(3):
                reply = await searcher.receive()
                while reply.status == NtStatus.PENDING:
                    reply = await searcher.receive()
                if reply.status:
                    assert reply.status == NtStatus.NO_MORE_FILES
                    done = True
                    continue
                offset, length = struct.unpack_from("<HI", reply.body, 2)
                data = reply.message[offset : offset + length]
                while True:
                    step, _, size = struct.unpack_from("<III", data)
                    found.append(data[12 : 12 + size].decode("utf-16-le"))
                    if not step:
                        break
                    data = data[step:]
        assert sorted(found) == sorted(names)

    drive(test)


# Other people's things


def test_ids_of_other_sessions_are_of_no_use() -> None:
    """FileIds, TreeIds and SessionIds count in their own session only, on whatever connection."""

    async def test(harness: Harness) -> None:
        victim = await harness.connect()
        await victim.login()
        file_id = file_id_of(await victim.open("secret", 2))
        read = struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, 100, 0, file_id, 0, 0, 0, 0, 0) + b"\0"
        close = struct.pack("<HHI16s", 24, 0, 0, file_id)
        attacker = await harness.connect()
        await attacker.negotiate()
        assert (await attacker.session_setup("other")).status == 0
        assert (await attacker.call(Command.READ, read)).status == NtStatus.NETWORK_NAME_DELETED
        assert (await attacker.call(Command.READ, read, tree_id=victim.tree_id)).status == NtStatus.NETWORK_NAME_DELETED
        assert (await attacker.tree_connect()).status == 0
        for command, body in ((Command.READ, read), (Command.CLOSE, close)):
            assert (await attacker.call(command, body)).status == NtStatus.FILE_CLOSED
        attacker.sign = False
        for command, body in ((Command.READ, read), (Command.LOGOFF, ECHO), (Command.ECHO, ECHO)):
            reply = await attacker.call(command, body, session_id=victim.session_id, tree_id=victim.tree_id)
            assert reply.status == NtStatus.USER_SESSION_DELETED
        assert (await victim.call(Command.CLOSE, close)).status == 0

    drive(test)


async def second_session(client: Client, user: str = "other") -> Client:
    """Another session on the same connection, as a client of its own that shares the bytes."""
    other = Client(client.reader, client.writer)
    other.message_id = client.message_id
    other.dialect, other.cipher_id, other.signing_id = client.dialect, client.cipher_id, client.signing_id
    other.preauth = client.negotiated_preauth  # type: ignore[attr-defined]
    assert (await other.session_setup(user)).status == 0
    client.message_id = other.message_id
    return other


async def two_sessions(harness: Harness) -> tuple[Client, Client]:
    client = await harness.connect()
    assert (await client.negotiate()).status == 0
    client.negotiated_preauth = client.preauth  # type: ignore[attr-defined]
    assert (await client.session_setup()).status == 0
    assert (await client.tree_connect()).status == 0
    other = await second_session(client)
    assert (await other.tree_connect()).status == 0
    client.message_id = other.message_id
    return client, other


def test_encryption_of_one_session_proves_nothing_of_another() -> None:
    async def test(harness: Harness) -> None:
        client, other = await two_sessions(harness)
        message = client.build(Command.LOGOFF, ECHO, session_id=client.session_id)
        compound = other.build(Command.ECHO, ECHO, message_id=client.message_id, next_command=72) + bytes(4) + message
        client.message_id += 1
        # The header of the first command names the encrypting session, that of the second the victim.
        second = bytearray(compound)
        second[72 + 24 : 72 + 32] = client.message_id.to_bytes(8, "little")
        await client.frame(other.sealed(bytes(second)))
        replies = []
        raw = await other.receive_compound()
        replies += raw
        if len(replies) < 2:
            replies += await other.receive_compound()
        assert [reply.status for reply in replies] == [0, NtStatus.USER_SESSION_DELETED]
        assert client.session_id in harness.server.sessions.by_id

    drive(test, Settings(require_signing=True))


def test_a_logon_inside_another_sessions_encryption_does_not_end_the_victim() -> None:
    """SESSION_SETUP of a session that is valid is a reauthentication, which must be protected by its own keys: who
    fails it ends the session."""

    async def test(harness: Harness) -> None:
        client, other = await two_sessions(harness)
        first = other.build(Command.ECHO, ECHO, message_id=client.message_id, next_command=72) + bytes(4)
        second = client.build(
            Command.SESSION_SETUP,
            setup_body(b"garbage"),
            session_id=client.session_id,
            message_id=client.message_id + 1,
        )
        await client.frame(other.sealed(first + second))
        replies = await other.receive_compound()
        if len(replies) < 2:
            replies += await other.receive_compound()
        assert [reply.status for reply in replies] == [0, NtStatus.ACCESS_DENIED]
        assert client.session_id in harness.server.sessions.by_id

    drive(test, Settings(require_signing=True))


def test_a_signed_message_means_nothing_on_another_connection() -> None:
    async def test(harness: Harness) -> None:
        victim, attacker = await harness.connect(), await harness.connect()
        await victim.login()
        await attacker.login()
        stolen = victim.signed(victim.build(Command.LOGOFF, ECHO, message_id=attacker.message_id))
        await attacker.frame(stolen)
        assert (await attacker.receive()).status == NtStatus.USER_SESSION_DELETED
        assert victim.session_id in harness.server.sessions.by_id

    drive(test)


def test_a_message_replayed_disconnects_and_is_not_run() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        message = client.signed(client.build(Command.CREATE, create_body("once", 2)))
        await client.frame(message)
        assert (await client.receive()).status == 0
        await client.frame(message)
        assert await client.closed()

    drive(test)


def test_a_resume_key_of_another_session() -> None:
    async def test(harness: Harness) -> None:
        victim, attacker = await harness.connect(), await harness.connect()
        await victim.login()
        await attacker.login()
        source = file_id_of(await victim.open("source", 2))
        reply = await victim.call(Command.IOCTL, ioctl_body(Fsctl.SRV_REQUEST_RESUME_KEY, b"", source))
        assert reply.status == 0
        offset = int.from_bytes(reply.body[32:36], "little") - HEADER_SIZE
        key = reply.body[offset : offset + 24]
        target = file_id_of(await attacker.open("target", 2))
        chunks = key + struct.pack("<II", 1, 0) + struct.pack("<QQII", 0, 0, 1, 0)
        reply = await attacker.call(Command.IOCTL, ioctl_body(Fsctl.SRV_COPYCHUNK, chunks, target))
        assert reply.status == NtStatus.OBJECT_NAME_NOT_FOUND

    drive(test)


# Garbage, by the thousand


def requests(file_id: bytes) -> list[tuple[int, bytes]]:
    """One well-formed body of each command, as a start."""
    name = "file".encode("utf-16-le")
    descriptor = bytes.fromhex("010004801400000024000000000000003400000001020000000000052000000020020000") + bytes(40)
    ea = struct.pack("<IBBH", 0, 0, 4, 5) + b"NAME\0VALUE"
    contexts = b"".join(
        struct.pack("<IHHHHI", 0 if last else 24 + len(data) + (-len(data) & 7), 16, 4, 0, 24, len(data))
        + tag
        + bytes(4)
        + data
        + bytes(-len(data) & 7)
        for tag, data, last in (
            (b"ExtA", ea, False),
            (b"SecD", descriptor, False),
            (b"MxAc", b"", False),
            (b"QFid", b"", False),
            (b"RqLs", bytes(52), False),
            (b"DH2Q", bytes(32), False),
            (b"AlSi", bytes(8), True),
        )
    )
    create = bytearray(create_body("file2", 3))
    create += bytes(-len(create) & 7)
    create[48:56] = struct.pack("<II", HEADER_SIZE + len(create), len(contexts))
    rename = struct.pack("<B7xQI", 1, 0, len(name)) + name

    def set_info(kind: int, level: int, data: bytes) -> bytes:
        return struct.pack("<HBBIHHI16s", 33, kind, level, len(data), 96, 0, 0, file_id) + data

    def query(kind: int, level: int) -> bytes:
        return struct.pack("<HBBIHHIII16s", 41, kind, level, 65536, 0, 0, 0, 7, 0, file_id) + b"\0"

    return [
        (Command.NEGOTIATE, negotiate_body((0x0311,), contexts_for())),
        (Command.SESSION_SETUP, setup_body(b"NTLMSSP\0" + struct.pack("<II", 3, 0) + bytes(60))),
        (Command.TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, 30) + "\\\\server\\share".encode("utf-16-le")),
        (Command.CREATE, create_body("file3", 5)),
        (Command.CREATE, bytes(create) + contexts),
        (Command.READ, struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, 100, 0, file_id, 0, 0, 0, 0, 0) + b"\0"),
        (Command.WRITE, struct.pack("<HHIQ16sIIHHI", 49, 112, 4, 0, file_id, 0, 0, 0, 0, 0) + b"data"),
        (Command.LOCK, struct.pack("<HHI16s", 48, 1, 0, file_id) + struct.pack("<QQII", 0, 1, 0x12, 0)),
        (Command.FLUSH, struct.pack("<HHI16s", 24, 0, 0, file_id)),
        (Command.QUERY_DIRECTORY, struct.pack("<HBBI16sHHI", 33, 37, 0, 0, file_id, 96, 2, 65536) + b"*\0"),
        (Command.CHANGE_NOTIFY, struct.pack("<HHI16sII", 32, 0, 65536, file_id, 0xFFF, 0)),
        *[(Command.QUERY_INFO, query(1, level)) for level in (4, 5, 15, 18, 22, 34)],
        *[(Command.QUERY_INFO, query(2, level)) for level in (1, 3, 5)],
        (Command.QUERY_INFO, query(3, 0)),
        (Command.SET_INFO, set_info(1, 4, bytes(40))),
        (Command.SET_INFO, set_info(1, 10, rename)),
        (Command.SET_INFO, set_info(1, 13, b"\0")),
        (Command.SET_INFO, set_info(1, 15, ea)),
        (Command.SET_INFO, set_info(1, 20, bytes(8))),
        (Command.SET_INFO, set_info(3, 0, descriptor)),
        *[
            (Command.IOCTL, ioctl_body(code, bytes(64), file_id))
            for code in (
                Fsctl.SRV_COPYCHUNK, Fsctl.SRV_REQUEST_RESUME_KEY, Fsctl.SET_SPARSE, Fsctl.SET_ZERO_DATA,
                Fsctl.QUERY_ALLOCATED_RANGES, Fsctl.SET_REPARSE_POINT, Fsctl.GET_REPARSE_POINT,
                Fsctl.DUPLICATE_EXTENTS_TO_FILE, Fsctl.VALIDATE_NEGOTIATE_INFO, Fsctl.DFS_GET_REFERRALS,
                Fsctl.PIPE_TRANSCEIVE, Fsctl.PIPE_WAIT, Fsctl.QUERY_NETWORK_INTERFACE_INFO,
            )
            if code is not None
        ],
        (Command.OPLOCK_BREAK, struct.pack("<HBBI16s", 24, 1, 0, 0, file_id)),
        (Command.OPLOCK_BREAK, struct.pack("<HHI16sIQ", 36, 0, 0, bytes(16), 0, 0)),
    ]  # fmt: skip


_INTERESTING = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFE, 0xFF)


def mutate(chance: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(chance.randint(1, 2)):
        kind = chance.choice((0, 0, 0, 1, 2, 3, 4, 4))
        place = chance.randrange(2, len(data)) if len(data) > 2 else 0
        if kind == 0 and data:
            data[place] = chance.choice(_INTERESTING)
        elif kind == 1:
            data[place : place + 4] = chance.randbytes(4)
        elif kind == 2:
            del data[place : place + chance.randint(1, 8)]
        elif kind == 3:
            data[place:place] = chance.randbytes(chance.randint(1, 8))
        else:
            data[place : place + 4] = chance.choice((0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(data))).to_bytes(
                4, "little"
            )
    return bytes(data)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("directory", [False, True])
def test_no_request_makes_a_handler_fail(seed: int, directory: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Every mutated request gets a status of the specification's or a disconnect; INTERNAL_ERROR is a bug, as is
    silence."""

    async def test(harness: Harness) -> None:
        chance = random.Random(seed * 2 + directory)
        client: Client | None = None
        file_id = NO_FILE
        for number in range(400):
            if client is None:
                client = await harness.connect()
                await client.login()
                file_id = file_id_of(await client.open(f"fresh{number}", 3, 0x1F01FF, int(directory)))
            command, body = chance.choice(requests(file_id))
            mutated = mutate(chance, body)
            flags = chance.choice((0, 0, 0, 0, 0, 0, HeaderFlags.RELATED_OPERATIONS, HeaderFlags.REPLAY_OPERATION))
            try:
                await client.post(command, mutated, flags=flags)
                await client.post(Command.ECHO, ECHO)
                while True:
                    reply = await client.receive()
                    assert reply.status != NtStatus.INTERNAL_ERROR, (Command(command).name, mutated.hex())
                    if reply.header.command == Command.ECHO:
                        break
            except (ConnectionError, asyncio.IncompleteReadError):
                client = None
                continue
            if client.session_id not in harness.server.sessions.by_id or (
                int.from_bytes(file_id[:8], "little") not in harness.server.opens.by_id
            ):
                client.writer.close()
                client = None

    with caplog.at_level(logging.ERROR):
        drive(test)
    assert not caplog.records, caplog.text


# Named pipes


async def pipe(harness: Harness) -> tuple[Client, bytes]:
    """srvsvc, bound."""
    client = await harness.connect()
    await client.login(share="IPC$")
    file_id = file_id_of(await client.open("srvsvc", 1))
    syntaxes = uuid.UUID("4b324fc8-1670-01d3-1278-5a47bf6ee188").bytes_le + struct.pack("<HH", 3, 0)
    syntaxes += uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le + struct.pack("<I", 2)
    body = struct.pack("<HHIBBHHBB", 4280, 4280, 0, 1, 0, 0, 0, 1, 0) + syntaxes
    answer = await transceive(client, file_id, rpc_fragment(11, body))
    assert answer[2] == 12
    return client, file_id


def rpc_fragment(kind: int, body: bytes, flags: int = 3) -> bytes:
    return struct.pack("<BBBBIHHI", 5, 0, kind, flags, 0x10, 16 + len(body), 0, 1) + body


async def transceive(client: Client, file_id: bytes, data: bytes) -> bytes:
    reply = await client.call(Command.IOCTL, ioctl_body(Fsctl.PIPE_TRANSCEIVE, data, file_id))
    assert reply.status == 0, hex(reply.status)
    offset, length = struct.unpack_from("<II", reply.body, 32)
    return reply.message[offset : offset + length]


def test_a_string_that_is_none_in_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """NetrShareGetInfo of a name with half a surrogate pair: a fault, not a failure of the server's."""

    async def test(harness: Harness) -> None:
        client, file_id = await pipe(harness)
        stub = struct.pack("<IIII", 0, 3, 0, 3) + b"\x00\xd8a\0\0\0" + bytes(2) + struct.pack("<I", 1)
        answer = await transceive(client, file_id, rpc_fragment(0, struct.pack("<IHH", len(stub), 0, 16) + stub))
        assert answer[2] == 3
        assert int.from_bytes(answer[24:28], "little") == 0x000006F7

    with caplog.at_level(logging.ERROR):
        drive(test)
    assert not caplog.records


def test_calls_that_are_too_long() -> None:
    async def test(harness: Harness) -> None:
        client, file_id = await pipe(harness)
        data = bytes(65537)
        write = struct.pack("<HHIQ16sIIHHI", 49, 112, len(data), 0, file_id, 0, 0, 0, 0, 0) + data
        assert (await client.call(Command.WRITE, write, credit_charge=2)).status == NtStatus.INSUFFICIENT_RESOURCES
        body = struct.pack("<IHH", 4000, 0, 36) + bytes(4000)
        first = rpc_fragment(0, body, flags=1)
        answer = b""
        for number in range(20):
            part = first if not number else rpc_fragment(0, body, flags=0)
            write = struct.pack("<HHIQ16sIIHHI", 49, 112, len(part), 0, file_id, 0, 0, 0, 0, 0) + part
            if (await client.call(Command.WRITE, write)).status:
                break
            read = struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, 4280, 0, file_id, 0, 0, 0, 0, 0) + b"\0"
            reply = await client.call(Command.READ, read)
            if reply.status == 0:
                answer = reply.message[80:]
                break
        assert number < 10
        assert not answer or answer[2] == 3

    drive(test)
