"""NEGOTIATE, SESSION_SETUP, TREE_CONNECT, binding, and the FSCTLs that guard the negotiation."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
import spnego

from smb3server.settings.server import Settings
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.negotiate import Capability
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import ECHO, Client, Harness, context, contexts_for, drive, ioctl_body, negotiate_body

Test = Callable[[Harness], Awaitable[None]]
SIGNED = int(HeaderFlags.SIGNED)


async def negotiate_raw(harness: Harness, body: bytes) -> tuple[Client, int]:
    client = await harness.connect()
    reply = await client.call(Command.NEGOTIATE, body, session_id=0)
    return client, reply.status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (negotiate_body(()), NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0302,))[:-2], NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x1234, 0x0312)), NtStatus.NOT_SUPPORTED),
        (negotiate_body((0x02FF,)), NtStatus.NOT_SUPPORTED),
        (negotiate_body((0x0311,)), NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0311,), contexts_for()[1:]), NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0311,), contexts_for() + contexts_for()[:1]), NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0311,), contexts_for())[:-3], NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0311,), [context(1, b"")]), NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0311,), [context(1, struct.pack("<HH", 9, 0))]), NtStatus.INVALID_PARAMETER),
        (negotiate_body((0x0311,), [context(1, struct.pack("<HH", 0, 0))]), NtStatus.INVALID_PARAMETER),
        (
            negotiate_body((0x0311,), [context(1, struct.pack("<HHH", 1, 0, 2))]),
            NtStatus.SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP,
        ),
        (
            negotiate_body((0x0311,), [*contexts_for()[:1], context(2, struct.pack("<H", 0))]),
            NtStatus.INVALID_PARAMETER,
        ),
        (negotiate_body((0x0311,), [*contexts_for(), context(0x4242, b"?"), context(0x4243, bytes(10))]), 0),
        (negotiate_body((0x0202, 0x0210, 0x0300)), 0),
    ],
    ids=[
        "no-dialect",
        "cut-dialects",
        "unknown-dialects",
        "wildcard-dialect",
        "3.1.1-without-contexts",
        "no-preauth-context",
        "two-preauth-contexts",
        "cut-contexts",
        "empty-preauth-context",
        "preauth-counts-too-much",
        "no-hash",
        "unknown-hash",
        "no-cipher",
        "unknown-context",
        "old-dialects",
    ],
)
def test_negotiate(body: bytes, status: int) -> None:
    async def test(harness: Harness) -> None:
        _client, found = await negotiate_raw(harness, body)
        assert found == status

    drive(test)


def test_a_negotiate_that_claims_to_be_signed_is_refused() -> None:
    """3.3.5.2.4."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        body = negotiate_body((0x0311,), contexts_for(), client.guid)
        refused = await client.call(Command.NEGOTIATE, body, flags=int(HeaderFlags.SIGNED))
        assert refused.status == NtStatus.INVALID_PARAMETER
        await client.login()

    drive(test)


@pytest.mark.parametrize("in_negotiate", [True, False])
@pytest.mark.parametrize("in_setup", [True, False])
def test_signing_is_required_where_either_request_says_so(in_negotiate: bool, in_setup: bool) -> None:
    """3.3.5.4 (Connection.ShouldSign), 3.3.5.5.3."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        body = negotiate_body((0x0302,), None, client.guid, mode=2 if in_negotiate else 1)
        assert (await client.call(Command.NEGOTIATE, body)).status == 0
        client.dialect, client.cipher_id, client.signing_id = 0x0302, 1, 1
        assert (await client.session_setup(mode=2 if in_setup else 1)).status == 0
        client.sign = False
        expected = NtStatus.ACCESS_DENIED if in_negotiate or in_setup else NtStatus.SUCCESS
        assert (await client.tree_connect()).status == expected

    drive(test)


def test_no_common_cipher_is_no_encryption() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        reply = await client.negotiate(contexts=[contexts_for()[0], context(2, struct.pack("<HH", 1, 99))])
        assert reply.status == 0
        assert next(iter(harness.server.connection_list)).cipher_id == 0

    drive(test)


@pytest.mark.parametrize("dialect", [0x0300, 0x0302, 0x0311])
@pytest.mark.parametrize("asked", [Capability.MULTI_CHANNEL, Capability.DIRECTORY_LEASING])
def test_a_capability_is_for_clients_that_ask_for_it(dialect: int, asked: Capability) -> None:
    """3.3.5.4, as pike's ``CapMultichannel`` wants it."""

    async def test(harness: Harness) -> None:
        for capabilities in (asked, Capability(0)):
            client = await harness.connect()
            reply = await client.negotiate(dialect, capabilities=int(capabilities))
            (offered,) = struct.unpack_from("<I", reply.body, 24)
            both = Capability.MULTI_CHANNEL | Capability.DIRECTORY_LEASING
            assert offered & both == capabilities

    drive(test)


def test_second_negotiate_disconnects() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        await client.post(Command.NEGOTIATE, negotiate_body((0x0302,)))
        assert await client.closed()

    drive(test)


def smb1(*dialects: bytes) -> bytes:
    names = b"".join(b"\x02" + name + b"\0" for name in dialects)
    return b"\xffSMB\x72" + bytes(27) + b"\0" + struct.pack("<H", len(names)) + names


@pytest.mark.parametrize("required", [False, True])
def test_multi_protocol_negotiate(required: bool) -> None:
    """3.3.5.3.1."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.frame(smb1(b"NT LM 0.12", b"SMB 2.002", b"SMB 2.???"))
        reply = await client.receive()
        mode, dialect = struct.unpack_from("<HH", reply.body, 2)
        assert (mode, dialect) == (1 | required << 1, 0x02FF)
        leasing, large_mtu = 2, 4
        assert struct.unpack_from("<I", reply.body, 24)[0] == leasing | large_mtu
        assert reply.header.credits >= 1
        client.message_id = 1
        await client.login()

    drive(test, Settings(require_signing=required))


def test_multi_protocol_negotiate_of_2_002_only() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.frame(smb1(b"SMB 2.002"))
        reply = await client.receive()
        assert struct.unpack_from("<H", reply.body, 4)[0] == 0x0202
        client.message_id = 1
        client.dialect = 0x0202
        assert (await client.session_setup()).status == 0

    drive(test)


@pytest.mark.parametrize("message", [smb1(b"NT LM 0.12"), smb1(), smb1(b"SMB 2.???")[:-1], b"\xffSMB\x73" + bytes(40)])
def test_smb1_otherwise_disconnects(message: bytes) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.frame(message)
        assert await client.closed()

    drive(test)


@pytest.mark.parametrize(("user", "password"), [("u", "wrong"), ("nobody", "pw"), ("u", "")])
def test_logon_failure_leaves_nothing(user: str, password: str) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        assert (await client.session_setup(user, password)).status == NtStatus.LOGON_FAILURE
        assert not harness.server.sessions.by_id
        connection = next(iter(harness.server.connection_list))
        assert not (connection.session_table or connection.acceptors or connection.preauth_session_table)

    drive(test)


def test_guest_gets_a_session_without_keys() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        reply = await client.session_setup("nobody", "whatever")
        assert reply.status == 0
        assert struct.unpack_from("<H", reply.body, 2)[0] == 1
        client.sign = False
        assert (await client.tree_connect("IPC$")).status == 0
        assert (await client.tree_connect("share")).status == NtStatus.ACCESS_DENIED

    drive(test, Settings(allow_guest=True))


def test_a_known_user_with_a_wrong_password_is_no_guest() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        assert (await client.session_setup("u", "wrong")).status == NtStatus.LOGON_FAILURE

    drive(test, Settings(allow_guest=True))


TOKENS = [
    b"\0",
    b"NTLMSSP\0",
    b"NTLMSSP\0\1\0\0\0",
    b"NTLMSSP\0\3\0\0\0" + b"\xff" * 60,
    b"\x60\x82\xff\xff",
    b"\x60" + b"\x80" * 50,
]


@pytest.mark.parametrize("token", TOKENS)
def test_bad_tokens(token: bytes) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        body = struct.pack("<HBBIIHHQ", 25, 0, 1, 1, 0, 88, len(token), 0) + (token or b"\0")
        reply = await client.call(Command.SESSION_SETUP, body)
        assert reply.status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
        assert not harness.server.sessions.by_id

    drive(test)


@pytest.mark.parametrize(("offset", "length"), [(88, 60000), (0, 10), (60000, 1), (87, 1)])
def test_token_outside_the_message(offset: int, length: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        body = struct.pack("<HBBIIHHQ", 25, 0, 1, 1, 0, offset, length, 0) + b"\0"
        assert (await client.call(Command.SESSION_SETUP, body)).status == NtStatus.INVALID_PARAMETER

    drive(test)


def test_sessions_under_way_are_limited() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        import spnego

        token = spnego.client("u", "pw", protocol="ntlm").step() or b""
        body = struct.pack("<HBBIIHHQ", 25, 0, 1, 1, 0, 88, len(token), 0) + token
        statuses = [(await client.call(Command.SESSION_SETUP, body)).status for _ in range(5)]
        assert statuses == [NtStatus.MORE_PROCESSING_REQUIRED] * 4 + [NtStatus.INSUFFICIENT_RESOURCES]

    drive(test, Settings(max_sessions_in_progress=4))


def test_logoff_ends_the_session_with_a_signed_reply() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.open("f")
        reply = await client.call(Command.LOGOFF, ECHO)
        assert reply.status == 0
        assert reply.header.signature != bytes(16)
        assert not harness.server.opens.by_id
        client.sign = False
        assert (await client.call(Command.LOGOFF, ECHO)).status == NtStatus.USER_SESSION_DELETED

    drive(test)


def test_reauthentication_keeps_opens_and_ends_the_session_when_it_fails() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.open("f")
        assert (await client.session_setup()).status == 0
        assert len(harness.server.opens.by_id) == 1
        assert (await client.call(Command.ECHO, ECHO)).status == 0
        assert (await client.session_setup("other")).status == 0
        assert len(harness.server.opens.by_id) == 1
        assert len(harness.server.sessions.by_id) == 1

    drive(test)


def test_previous_session_is_superseded() -> None:
    async def test(harness: Harness) -> None:
        old = await harness.connect()
        await old.login()
        await old.open("f")
        new = await harness.connect()
        await new.negotiate()
        assert (await new.session_setup(previous=old.session_id)).status == 0
        assert set(harness.server.sessions.by_id) == {new.session_id}
        assert not harness.server.opens.by_id

    drive(test)


def test_previous_session_of_another_user_is_left_alone() -> None:
    async def test(harness: Harness) -> None:
        old = await harness.connect()
        await old.login()
        new = await harness.connect()
        await new.negotiate()
        assert (await new.session_setup("other", previous=old.session_id)).status == 0
        assert len(harness.server.sessions.by_id) == 2

    drive(test)


async def second_channel(harness: Harness, first: Client, dialect: int = 0x0311) -> Client:
    client = await harness.connect()
    client.guid = first.guid
    await client.negotiate(dialect)
    client.session_id, client.tree_id = first.session_id, first.tree_id
    client.signer, client.session_key = first.signer, first.session_key
    return client


@pytest.mark.parametrize("dialect", [0x0300, 0x0302, 0x0311])
def test_binding(dialect: int) -> None:
    """3.3.5.5.2: the channel signs with a key of its own, and the session outlives its first connection."""

    async def test(harness: Harness) -> None:
        first = await harness.connect()
        await first.login(dialect)
        file_id = (await first.open("f")).body[64:80]
        second = await second_channel(harness, first, dialect)
        assert (await second.session_setup(binding=True)).status == 0
        assert second.signer is not first.signer
        assert (await second.call(Command.ECHO, ECHO)).status == 0
        first.writer.close()
        async with asyncio.timeout(5):
            while len(harness.server.connection_list) > 1:
                await asyncio.sleep(0.005)
        reply = await second.call(Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, file_id))
        assert reply.status == 0

    drive(test)


def test_binding_refused() -> None:
    async def test(harness: Harness) -> None:
        first = await harness.connect()
        await first.login()
        stranger = await second_channel(harness, first)
        stranger.session_id = first.session_id ^ 1
        assert (await stranger.session_setup(binding=True)).status == NtStatus.USER_SESSION_DELETED
        stranger.session_id = first.session_id
        body = struct.pack("<HBBIIHHQ", 25, 1, 1, 1, 0, 88, 0, 0) + b"\0"
        assert (await stranger.call(Command.SESSION_SETUP, body)).status == NtStatus.INVALID_PARAMETER
        assert (await stranger.session_setup("other", binding=True)).status == NtStatus.ACCESS_DENIED
        other = await second_channel(harness, first, 0x0302)
        # The session's key is in use with AES-GMAC, which no dialect but 3.1.1 knows.
        assert (await other.session_setup(binding=True)).status == NtStatus.REQUEST_OUT_OF_SEQUENCE
        assert (await first.call(Command.ECHO, ECHO)).status == 0
        assert len(harness.server.sessions.by_id) == 1

    drive(test)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dialect", [0x0202, 0x0210])
def test_dialects_without_multichannel_refuse_to_bind_before_they_look_for_a_session(
    dialect: int, known: bool, signed: bool
) -> None:
    """3.3.5.5, 4. and 5."""

    async def test(harness: Harness) -> None:
        first = await harness.connect()
        await first.login(dialect)
        second = await second_channel(harness, first, dialect)
        second.session_id = first.session_id ^ (not known)
        body = binding_body()
        message = second.build(Command.SESSION_SETUP, body)
        await second.frame(second.signed(message) if signed else message)
        assert (await second.receive()).status == NtStatus.REQUEST_NOT_ACCEPTED

    drive(test)


def binding_body() -> bytes:
    return struct.pack("<HBBIIHHQ", 25, 1, 1, 1, 0, 88, 0, 0) + b"\0"


def test_a_session_is_not_bound_before_its_logon_is_complete() -> None:
    """3.3.5.5, 4.: on another connection, and on its own."""

    async def test(harness: Harness) -> None:
        first = await harness.connect()
        await first.negotiate()
        context = spnego.client("u", "pw", protocol="ntlm", hostname="server", service="cifs")
        token = context.step() or b""
        body = struct.pack("<HBBIIHHQ", 25, 0, 1, 1, 0, 88, len(token), 0) + token
        assert (await first.call(Command.SESSION_SETUP, body)).status == NtStatus.MORE_PROCESSING_REQUIRED
        (session_id,) = harness.server.sessions.by_id
        for connection in (await harness.connect(), first):
            if connection is not first:
                connection.guid = first.guid
                await connection.negotiate()
            connection.session_id = session_id
            for flags, status in ((0, NtStatus.INVALID_PARAMETER), (SIGNED, NtStatus.REQUEST_NOT_ACCEPTED)):
                await connection.frame(connection.build(Command.SESSION_SETUP, binding_body(), flags=flags))
                assert (await connection.receive()).status == status

    drive(test)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("\\\\server\\share", 0),
        ("\\\\server\\SHARE", 0),
        ("\\\\server\\IPC$", 0),
        ("\\\\server\\nothing", NtStatus.BAD_NETWORK_NAME),
        ("\\\\server\\", NtStatus.BAD_NETWORK_NAME),
        ("\\\\server\\" + "x" * 81, NtStatus.BAD_NETWORK_NAME),
        ("share", NtStatus.INVALID_PARAMETER),
        ("\\\\share", NtStatus.INVALID_PARAMETER),
        ("\\\\server\\share\\dir", NtStatus.INVALID_PARAMETER),
        ("", NtStatus.INVALID_PARAMETER),
    ],
)
def test_tree_connect_paths(path: str, status: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        await client.session_setup()
        raw = path.encode("utf-16-le")
        reply = await client.call(Command.TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, len(raw)) + (raw or b"\0"))
        assert reply.status == status

    drive(test)


def test_tree_connect_of_3_1_1_must_be_signed() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        await client.session_setup()
        client.sign = False
        path = "\\\\server\\share".encode("utf-16-le")
        await client.post(Command.TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, len(path)) + path)
        assert await client.closed()

    drive(test)


def test_tree_disconnect_closes_its_opens_only() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.open("f")
        first = client.tree_id
        await client.tree_connect()
        await client.open("g")
        assert (await client.call(Command.TREE_DISCONNECT, ECHO, tree_id=first)).status == 0
        assert len(harness.server.opens.by_id) == 1

    drive(test)


def validate_body(client: Client, mode: int = 1, capabilities: int = 0x7F) -> bytes:
    data = struct.pack("<I16sHHH", capabilities, client.guid, mode, 1, client.dialect)
    return ioctl_body(Fsctl.VALIDATE_NEGOTIATE_INFO, data)


@pytest.mark.parametrize("dialect", [0x0210, 0x0300, 0x0302])
def test_validate_negotiate_info(dialect: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login(dialect)
        reply = await client.call(Command.IOCTL, validate_body(client))
        assert reply.status == 0
        assert reply.message[112 + 4 : 112 + 20] == harness.server.server_guid
        assert struct.unpack_from("<H", reply.message, 112 + 22)[0] == dialect
        await client.post(Command.IOCTL, validate_body(client, capabilities=1))
        assert await client.closed()

    drive(test)


def test_validate_negotiate_info_in_3_1_1_disconnects() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.post(Command.IOCTL, validate_body(client))
        assert await client.closed()

    drive(test)


@pytest.mark.parametrize(("posix", "told"), [(True, [2, 0]), (False, [2])])
def test_network_interfaces(posix: bool, told: list[int]) -> None:
    """An address with RDMA is told twice to those who offer the POSIX extensions: to Linux, which needs it."""

    async def test(harness: Harness) -> None:
        await harness.server.interfaces.start()
        harness.server.rdma_addresses.add("127.0.0.1")
        harness.server.tcp_addresses.add("127.0.0.1")
        client = await harness.connect()
        offer = context(0x100, bytes.fromhex("93ad25509cb411e7b42383de968bcd7c"))
        await client.login(share="IPC$", contexts=[*contexts_for(), *[offer] * posix])
        reply = await client.call(Command.IOCTL, ioctl_body(Fsctl.QUERY_NETWORK_INTERFACE_INFO))
        assert reply.status == 0
        output = reply.message[112:]
        found = []
        while True:
            step, _index, capability, _, speed, family = struct.unpack_from("<IIIIQH", output)
            assert speed > 0
            if family == 2:
                found.append((bytes(output[28:32]), capability))
            if not step:
                break
            output = output[step:]
        assert [flags for address, flags in found if address == b"\x7f\x00\x00\x01"] == told
        await harness.server.interfaces.stop()

    drive(test)


def test_no_dfs() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login(share="IPC$")
        reply = await client.call(Command.IOCTL, ioctl_body(Fsctl.DFS_GET_REFERRALS, bytes(10)))
        assert reply.status == NtStatus.FS_DRIVER_REQUIRED

    drive(test)
