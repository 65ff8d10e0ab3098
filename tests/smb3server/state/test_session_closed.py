"""The notification that a session has ended, for clients that have negotiated it. [MS-SMB2 2.2.44, 3.3.5.4]"""

from __future__ import annotations

import asyncio
import struct

import pytest

from smb3server.settings.server import Settings
from smb3server.state import endings
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.negotiate import Capability
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import Client, Harness, running

NOTIFIES = 0x7F | Capability.NOTIFICATIONS
SIGNING_REQUIRED = 2


async def _client(harness: Harness, dialect: int = 0x0311, capabilities: int = NOTIFIES, mode: int = 1) -> Client:
    client = await harness.connect()
    reply = await client.negotiate(dialect, capabilities=capabilities)
    offered = struct.unpack_from("<I", reply.body, 24)[0]
    wanted = Capability.NOTIFICATIONS if dialect == 0x0311 and capabilities == NOTIFIES else 0
    assert offered & Capability.NOTIFICATIONS == wanted
    assert (await client.session_setup(mode=mode)).status == 0
    return client


def _end(harness: Harness) -> int:
    (session,) = harness.server.sessions.by_id.values()
    endings.end_session(harness.server, session)
    return session.session_id


@pytest.mark.parametrize("mode", [1, SIGNING_REQUIRED])
def test_client_is_told(mode: int) -> None:
    async def scene() -> None:
        async with running() as harness:
            client = await _client(harness, mode=mode)
            session_id = _end(harness)
            told = await client.receive()
            assert (told.header.command, told.status, told.header.session_id) == (0x13, 0, session_id)
            assert told.header.message_id == 0xFFFFFFFFFFFFFFFF
            assert bytes(told.body) == struct.pack("<HHII", 4, 0, 0, 0)
            assert bool(told.header.flags & HeaderFlags.SIGNED) == (mode == SIGNING_REQUIRED)
            assert (await client.call(Command.ECHO, struct.pack("<HH", 4, 0))).status == NtStatus.USER_SESSION_DELETED

    asyncio.run(scene())


@pytest.mark.parametrize(("dialect", "capabilities"), [(0x0311, 0x7F), (0x0302, NOTIFIES)])
def test_others_find_out_with_their_next_request(dialect: int, capabilities: int) -> None:
    async def scene() -> None:
        async with running() as harness:
            client = await _client(harness, dialect, capabilities)
            _end(harness)
            assert (await client.call(Command.ECHO, struct.pack("<HH", 4, 0))).status == NtStatus.USER_SESSION_DELETED

    asyncio.run(scene())


def test_encrypted_session_is_told_encrypted() -> None:
    async def scene() -> None:
        async with running(Settings(require_encryption=True)) as harness:
            client = await _client(harness)
            session_id = _end(harness)
            frame = await client.receive_frame()
            assert frame[:4] == b"\xfdSMB"
            assert client.cipher is not None
            plain = client.cipher.decrypt(memoryview(bytearray(frame)))
            assert plain is not None
            assert struct.unpack_from("<H", plain, 12)[0] == 0x13
            assert struct.unpack_from("<Q", plain, 40)[0] == session_id

    asyncio.run(scene())


def test_the_number_is_no_request() -> None:
    async def scene() -> None:
        async with running() as harness:
            client = await _client(harness)
            reply = await client.call(0x13, struct.pack("<HHII", 4, 0, 0, 0))
            assert reply.status == NtStatus.INVALID_PARAMETER

    asyncio.run(scene())
