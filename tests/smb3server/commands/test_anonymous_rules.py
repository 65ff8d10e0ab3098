"""Anonymous sessions that sign or encrypt: rows N1 to N7 of docs/caching.md."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from smb3server.settings.server import Settings
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus
from tests.lab.anonymous import AnonymousLogon
from tests.lab.wire_client import ECHO, Client, Harness, Reply, running, server_signature

REQUIRED = 2
"""SMB2_NEGOTIATE_SIGNING_REQUIRED."""
DIALECTS = pytest.mark.parametrize("dialect", [0x0311, 0x0300, 0x0210])


def run(test: Callable[[Harness], Awaitable[None]], **share: object) -> None:
    async def body() -> None:
        settings = Settings(min_dialect=0x0202, rdma_min_dialect=0x0202, allow_anonymous=True)
        async with running(settings, **share) as harness:
            await test(harness)

    asyncio.run(body())


async def nobody(
    harness: Harness, dialect: int = 0x0311, key: bytes = bytes(16), mode: int = 1
) -> tuple[Client, Reply]:
    """An anonymous session, and the last response of its logon. ``key``: the session key that the client uses."""
    client = await harness.connect()
    assert (await client.negotiate(dialect)).status == 0
    reply = await client.session_setup(context=AnonymousLogon(key), mode=mode)
    assert reply.status == 0
    return client, reply


def is_signed(reply: Reply) -> bool:
    return bool(reply.header.flags & HeaderFlags.SIGNED)


async def tree_connect(client: Client, share: str = "IPC$") -> Reply:
    return await client.tree_connect(share)


@DIALECTS
def test_n4_the_response_to_the_logon_is_not_signed(dialect: int) -> None:
    async def test(harness: Harness) -> None:
        for mode in (1, REQUIRED):
            _, reply = await nobody(harness, dialect, mode=mode)
            assert not is_signed(reply)
            assert struct.unpack_from("<H", reply.body, 2) == (2,), "SMB2_SESSION_FLAG_IS_NULL"

    run(test)


@DIALECTS
@pytest.mark.parametrize("mode", [1, REQUIRED])
def test_n5_signed_requests_are_verified_and_get_signed_replies(dialect: int, mode: int) -> None:
    async def test(harness: Harness) -> None:
        client, _ = await nobody(harness, dialect, mode=mode)
        reply = await tree_connect(client)
        assert (reply.status, is_signed(reply)) == (0, True)
        assert client.signer is not None
        assert reply.header.signature == server_signature(client.signer, reply)

    run(test)


@DIALECTS
def test_n6_a_wrong_signature_is_denied_and_the_connection_stays(dialect: int) -> None:
    """Unsigned requests are served, also if the client required signing: as Windows does."""

    async def test(harness: Harness) -> None:
        client, _ = await nobody(harness, dialect, b"wrong key " + bytes(6), REQUIRED)
        refusal = await tree_connect(client)
        # 3.3.4.1.1: what answers a signed request is signed, also if its signature was wrong.
        assert (refusal.status, is_signed(refusal)) == (NtStatus.ACCESS_DENIED, True)
        client.sign = False
        reply = await tree_connect(client)
        assert (reply.status, is_signed(reply)) == (0, False)

    run(test)


def test_n2_nobody_encrypts_before_somebody_has_logged_on() -> None:
    async def test(harness: Harness) -> None:
        client, _ = await nobody(harness)
        client.encrypt = True
        await client.post(Command.ECHO, ECHO)
        assert await client.closed()

    run(test)


async def both(harness: Harness, key: bytes = bytes(16)) -> tuple[Client, Client]:
    """A user's session and an anonymous one, on one connection."""
    user = await harness.connect()
    await user.login()
    other = Client(user.reader, user.writer)
    other.dialect, other.cipher_id, other.signing_id = user.dialect, user.cipher_id, user.signing_id
    other.preauth, other.message_id = user.preauth, user.message_id
    assert (await other.session_setup(context=AnonymousLogon(key))).status == 0
    return user, other


def test_n1_n3_nobody_encrypts_beside_a_user() -> None:
    async def test(harness: Harness) -> None:
        user, other = await both(harness)
        other.encrypt = True
        assert (await tree_connect(other)).status == 0
        assert (await other.call(Command.ECHO, ECHO)).status == 0
        user.message_id = other.message_id
        assert (await user.call(Command.ECHO, ECHO)).status == 0

    run(test)


def test_n3_a_wrong_key_ends_the_connection() -> None:
    async def test(harness: Harness) -> None:
        _, other = await both(harness, b"wrong key " + bytes(6))
        other.encrypt = True
        await other.post(Command.ECHO, ECHO)
        assert await other.closed()

    run(test)


def test_n3_no_encrypted_share_for_keys_that_everybody_knows() -> None:
    async def test(harness: Harness) -> None:
        _, other = await both(harness)
        other.encrypt = True
        assert (await tree_connect(other, "share")).status == NtStatus.ACCESS_DENIED

    run(test, guest=True, encrypt=True)


def test_n3_a_user_in_a_session_that_began_anonymously_is_not_protected_by_its_keys() -> None:
    """TREE_CONNECT proves nothing about the negotiation then: the connection ends."""

    async def test(harness: Harness) -> None:
        client, _ = await nobody(harness)
        assert (await tree_connect(client)).status == 0
        assert (await client.session_setup()).status == 0
        path = "\\\\server\\share".encode("utf-16-le")
        await client.post(Command.TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, len(path)) + path, tree_id=0)
        assert await client.closed()

    run(test)


def test_n7_an_anonymous_session_is_not_bound() -> None:
    async def test(harness: Harness) -> None:
        client, _ = await nobody(harness)
        second = await harness.connect()
        second.guid = client.guid
        assert (await second.negotiate()).status == 0
        second.session_id, second.signer = client.session_id, client.signer
        reply = await second.session_setup(binding=True, context=AnonymousLogon())
        assert reply.status == NtStatus.NOT_SUPPORTED

    run(test)
