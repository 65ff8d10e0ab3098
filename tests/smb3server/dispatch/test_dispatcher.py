"""Requests over TCP: what the dispatcher accepts, refuses and disconnects for (MS-SMB2 3.3.5.2)."""

from __future__ import annotations

import struct

import pytest

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.dispatch.request import HANDLERS, Interim, Pending, Request, Response
from smb3server.net.tcp import TcpTransport
from smb3server.settings.server import Settings
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import (
    ECHO,
    RELATED,
    Client,
    Harness,
    Reply,
    compound,
    create_body,
    drive,
    ioctl_body,
    related,
    server_signature,
)


async def still_serving(harness: Harness) -> None:
    client = await harness.connect()
    await client.login()


@pytest.mark.parametrize("dialect", [0x0202, 0x0210, 0x0300, 0x0302, 0x0311])
def test_login_on_every_dialect(dialect: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login(dialect)
        reply = await client.call(Command.ECHO, ECHO)
        assert reply.status == NtStatus.SUCCESS
        assert client.signer is not None
        if dialect != 0x0311:
            assert reply.header.signature == client.signer.sign((reply.message[:48], bytes(16), reply.message[64:]), 0)

    drive(test)


@pytest.mark.parametrize("signing", [0, 1, 2])
def test_signing_algorithms_both_ways(signing: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login(signing=signing)
        reply = await client.call(Command.ECHO, ECHO)
        assert reply.header.flags & HeaderFlags.SIGNED
        assert client.signer is not None
        assert reply.header.signature == server_signature(client.signer, reply)

    drive(test)


@pytest.mark.parametrize("cipher", [1, 2, 3, 4])
def test_encrypted_session(cipher: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate(cipher=cipher)
        await client.session_setup()
        client.encrypt = True
        assert (await client.tree_connect()).status == 0
        assert (await client.call(Command.ECHO, ECHO)).status == 0

    drive(test)


GARBAGE = [
    b"\x00\x00\x00\x00",
    b"\x00\x00\x00\x03abc",
    b"\x00\x00\x00\x40" + b"\xfeSMB" + bytes(60),
    b"\x00\x00\x00\x40" + bytes(64),
    b"\x00\x00\x00\x40" + b"\xfcSMB" + bytes(60),
    b"\x00\x00\x00\x40" + b"\xfdSMB" + bytes(60),
    b"\x00\x00\x00\x04\xffSMB",
    b"\x00\xff\xff\xff",
    b"\x00\x02\x00\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    b"MPA ID Req Frame" + bytes(4),
    b"\x16\x03\x01\x02\x00",
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_disconnects_and_nobody_else_notices(data: bytes) -> None:
    async def test(harness: Harness) -> None:
        other = await harness.connect()
        await other.login()
        client = await harness.connect()
        await client.raw(data)
        assert await client.closed()
        assert (await other.call(Command.ECHO, ECHO)).status == 0

    drive(test)


def test_first_request_must_negotiate() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.post(Command.ECHO, ECHO)
        assert await client.closed()

    drive(test)


def test_message_id_used_twice_disconnects() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.post(Command.ECHO, ECHO, message_id=client.message_id - 1)
        assert await client.closed()

    drive(test)


def test_message_id_beyond_the_window_disconnects() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.post(Command.ECHO, ECHO, message_id=client.message_id + 100000)
        assert await client.closed()

    drive(test)


def test_out_of_order_message_ids() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        first = client.message_id
        for message_id in (first + 1, first):
            assert (await client.call(Command.ECHO, ECHO, message_id=message_id)).status == 0

    drive(test)


def test_bad_signature_is_access_denied() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        message = bytearray(client.signed(client.build(Command.ECHO, ECHO)))
        message[50] ^= 0xFF
        await client.frame(bytes(message))
        assert (await client.receive()).status == NtStatus.ACCESS_DENIED
        assert (await client.call(Command.ECHO, ECHO)).status == 0

    drive(test)


def test_unsigned_request_where_signing_is_required() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        client.sign = False
        assert (await client.call(Command.TREE_DISCONNECT, ECHO)).status == NtStatus.ACCESS_DENIED

    drive(test, Settings(require_signing=True))


def test_unencrypted_request_where_encryption_is_required() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        reply = await client.session_setup()
        assert struct.unpack_from("<H", reply.body, 2)[0] & 4
        assert (await client.tree_connect()).status == NtStatus.ACCESS_DENIED
        client.encrypt = True
        assert (await client.tree_connect()).status == 0

    drive(test, Settings(require_encryption=True))


async def answer(client: Client) -> tuple[int, bool]:
    """The status of the next message, and whether it was encrypted."""
    received = await client.receive_frame()
    encrypted = received[:4] == b"\xfdSMB"
    if encrypted:
        assert client.cipher is not None
        received = bytes(client.cipher.decrypt(memoryview(bytearray(received))) or b"")
    return Reply(received).status, encrypted


def test_refusals_of_unencrypted_requests_are_encrypted() -> None:
    """3.3.4.1.4, by Session.EncryptData."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        await client.session_setup()
        path = "\\\\server\\share".encode("utf-16-le")
        body = struct.pack("<HHHH", 9, 0, 72, len(path)) + path
        await client.frame(client.signed(client.build(Command.TREE_CONNECT, body)))
        assert await answer(client) == (NtStatus.ACCESS_DENIED, True)
        # Without a session there is no key.
        await client.frame(client.build(Command.LOGOFF, ECHO, session_id=77))
        assert await answer(client) == (NtStatus.USER_SESSION_DELETED, False)

    drive(test, Settings(require_encryption=True))


def test_refusals_on_an_encrypted_share_are_encrypted() -> None:
    """3.3.4.1.4, by Share.EncryptData: what goes with them in clear is answered in clear."""

    async def test(harness: Harness) -> None:
        harness.server.add_share(Share("secret", backend=MemoryBackend(), rules=ShareRules(encrypt=True)))
        client = await harness.connect()
        await client.login()
        plain = client.tree_id
        assert (await client.tree_connect("secret")).status == 0
        message = compound(
            client,
            client.build(Command.ECHO, ECHO, tree_id=plain),
            client.build(Command.CREATE, create_body("f")),
            client.build(Command.ECHO, ECHO, tree_id=plain),
        )
        await client.frame(message)
        found = [await answer(client) for _ in range(3)]
        assert found == [(0, False), (NtStatus.ACCESS_DENIED, True), (0, False)]

    drive(test)


def test_encryption_required_of_a_client_without() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate(0x0210)
        assert (await client.session_setup()).status == NtStatus.ACCESS_DENIED

    drive(test, Settings(require_encryption=True))


def test_tampered_encrypted_message_disconnects() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        message = bytearray(client.sealed(client.build(Command.ECHO, ECHO)))
        message[-1] ^= 1
        await client.frame(bytes(message))
        assert await client.closed()

    drive(test)


def test_encrypted_message_with_another_session_id_inside_disconnects() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(client.sealed(client.build(Command.ECHO, ECHO, session_id=client.session_id + 1)))
        assert await client.closed()

    drive(test)


def test_unknown_session_tree_and_command() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        reply = await client.call(Command.TREE_DISCONNECT, ECHO, tree_id=4711)
        assert reply.status == NtStatus.NETWORK_NAME_DELETED
        assert (await client.call(0x55, ECHO)).status == NtStatus.INVALID_PARAMETER
        client.sign = False
        reply = await client.call(Command.TREE_DISCONNECT, ECHO, session_id=4711)
        assert reply.status == NtStatus.USER_SESSION_DELETED

    drive(test)


@pytest.mark.parametrize("command", [c for c in Command if c not in (Command.NEGOTIATE, Command.CANCEL)])
@pytest.mark.parametrize("body", [b"", b"\x00", b"\x07\x00", b"\x07\x00" + bytes(100)])
def test_wrong_structure_size(command: Command, body: bytes) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        assert (await client.call(command, body)).status == NtStatus.INVALID_PARAMETER
        assert (await client.call(Command.ECHO, ECHO)).status == 0

    drive(test)


@pytest.mark.parametrize(("length", "charge", "status"), [(65536, 1, 0), (65537, 1, 1), (65537, 2, 0), (131073, 2, 1)])
def test_credit_charge_must_pay_for_the_payload(length: int, charge: int, status: int) -> None:
    """3.3.5.2.5, at the limits."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        reply = await client.open("f")
        file_id = reply.body[64:80]
        body = struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, length, 0, file_id, 0, 0, 0, 0, 0) + b"\0"
        reply = await client.call(Command.READ, body, credit_charge=charge)
        assert reply.status == (NtStatus.INVALID_PARAMETER if status else NtStatus.END_OF_FILE)

    drive(test)


def test_credits_are_granted_and_limited() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        reply = await client.call(Command.ECHO, ECHO, credits=0xFFFF)
        connection = next(iter(harness.server.connection_list))
        assert reply.header.credits > 0
        assert connection.command_sequence_window.available == 64

    drive(test, Settings(max_credits=64, credits_before_authentication=64))


def test_unrelated_compound() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(
            compound(client, client.build(Command.ECHO, ECHO), client.build(Command.TREE_DISCONNECT, ECHO, tree_id=99))
        )
        replies = await client.receive_compound()
        assert [reply.status for reply in replies] == [0, NtStatus.NETWORK_NAME_DELETED]
        assert len(replies[0].message) % 8 == 0
        assert client.signer is not None
        for reply in replies:
            assert reply.header.signature == server_signature(client.signer, reply)

    drive(test)


def close_body(file_id: bytes = b"\xff" * 16) -> bytes:
    return struct.pack("<HHI16s", 24, 0, 0, file_id)


def test_related_compound_inherits_session_tree_and_file() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(
            compound(
                client,
                client.build(Command.CREATE, create_body("f")),
                related(client, Command.CLOSE, close_body()),
                related(client, Command.CLOSE, close_body()),
            )
        )
        replies = await client.receive_compound()
        assert [reply.status for reply in replies] == [0, 0, NtStatus.FILE_CLOSED]
        assert replies[1].header.session_id == client.session_id
        assert replies[1].header.tree_id == client.tree_id

    drive(test)


def test_related_compound_fails_as_its_create_did() -> None:
    """3.3.5.2.7.2."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(
            compound(
                client,
                client.build(Command.CREATE, create_body("missing", disposition=1)),
                related(client, Command.CLOSE, close_body()),
            )
        )
        replies = await client.receive_compound()
        assert [reply.status for reply in replies] == [NtStatus.OBJECT_NAME_NOT_FOUND] * 2

    drive(test)


def test_replies_too_long_for_one_message_go_out_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(request: Request) -> Response:
        return Response((bytes(6 << 16),))

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        monkeypatch.setitem(HANDLERS, 0x54, large)
        monkeypatch.setattr(TcpTransport, "max_outbound_message_size", 1 << 20)
        await client.frame(compound(client, *(client.build(0x54, ECHO) for _ in range(5))))
        counts = []
        while sum(counts) < 5:
            counts.append(len(await client.receive_compound()))
        assert counts == [2, 2, 1]

    drive(test)


def test_first_command_cannot_be_related() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        reply = await client.call(Command.ECHO, ECHO, flags=RELATED)
        assert reply.status == NtStatus.INVALID_PARAMETER

    drive(test)


@pytest.mark.parametrize("step", [1, 8, 68, 4, 0xFFFFFFF8, 72 + 8])
def test_bad_next_command_disconnects(step: int) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(client.signed(client.build(Command.ECHO, ECHO + bytes(4), next_command=step)))
        assert await client.closed()

    drive(test)


def test_handler_that_raises_is_internal_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: Request) -> Response:
        raise ZeroDivisionError

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        monkeypatch.setitem(HANDLERS, Command.ECHO, broken)
        assert (await client.call(Command.ECHO, ECHO)).status == NtStatus.INTERNAL_ERROR
        monkeypatch.undo()
        assert (await client.call(Command.ECHO, ECHO)).status == 0

    drive(test)
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Pending]:
    """ECHO pends; the pending requests."""
    found: list[Pending] = []

    def pend(request: Request) -> Pending:
        found.append(request.pend(Interim.AT_ONCE))
        return found[-1]

    monkeypatch.setitem(HANDLERS, 0x54, pend)
    return found


def test_interim_reply_then_the_final_one(waiting: list[Pending]) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.post(0x54, ECHO)
        interim = await client.receive()
        assert interim.status == NtStatus.PENDING
        assert interim.header.flags & HeaderFlags.ASYNC_COMMAND
        assert interim.header.credits > 0
        assert (await client.call(Command.ECHO, ECHO)).status == 0
        waiting[0].complete(Response((ECHO,)))
        final = await client.receive()
        assert (final.status, final.header.async_id) == (0, interim.header.async_id)
        assert final.header.credits == 0
        connection = next(iter(harness.server.connection_list))
        assert not connection.host.pending_requests

    drive(test)


@pytest.mark.parametrize("by_async_id", [True, False])
def test_cancel(waiting: list[Pending], by_async_id: bool) -> None:
    """3.3.5.16."""

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        message_id = client.message_id
        await client.post(0x54, ECHO)
        interim = await client.receive()
        if by_async_id:
            async_id = interim.header.async_id
            await client.post(
                Command.CANCEL,
                ECHO,
                message_id=0,
                flags=int(HeaderFlags.ASYNC_COMMAND),
                reserved=async_id & 0xFFFFFFFF,
                tree_id=async_id >> 32,
            )
        else:
            await client.post(Command.CANCEL, ECHO, message_id=message_id)
        assert (await client.receive()).status == NtStatus.CANCELLED

    drive(test)


def test_cancel_of_another_session_does_nothing(waiting: list[Pending]) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        message_id = client.message_id
        await client.post(0x54, ECHO)
        await client.receive()
        client.sign = False
        await client.post(Command.CANCEL, ECHO, message_id=message_id, session_id=1)
        assert (await client.call(Command.ECHO, ECHO, session_id=0)).status == 0
        assert not waiting[0].done

    drive(test)


def test_compound_goes_on_after_a_pending_command(waiting: list[Pending]) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(
            compound(
                client,
                client.build(Command.ECHO, ECHO),
                client.build(0x54, ECHO),
                client.build(Command.ECHO, ECHO),
            )
        )
        assert (await client.receive()).status == 0
        assert (await client.receive()).status == NtStatus.PENDING
        waiting[0].complete(Response((ECHO,)))
        assert (await client.receive()).header.flags & HeaderFlags.ASYNC_COMMAND
        assert (await client.receive()).header.command == Command.ECHO

    drive(test)


def test_disconnect_cancels_what_waits(waiting: list[Pending]) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.post(0x54, ECHO)
        await client.receive()
        client.writer.close()
        await harness.settled()
        assert waiting[0].done

    drive(test)


def test_too_many_waiting_requests(waiting: list[Pending]) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        for _ in range(3):
            await client.post(0x54, ECHO)
            assert (await client.receive()).status == NtStatus.PENDING
        assert (await client.call(0x54, ECHO)).status == NtStatus.INSUFFICIENT_RESOURCES

    drive(test, Settings(max_async_requests=4))


def test_unknown_fsctl() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        reply = await client.call(Command.IOCTL, ioctl_body(0x12345678))
        assert reply.status == NtStatus.INVALID_DEVICE_REQUEST

    drive(test)


def test_silent_connections_cost_nothing() -> None:
    """500 connections that say nothing: no transport, no buffer, no connection object."""

    async def test(harness: Harness) -> None:
        silent = [await harness.connect() for _ in range(300)]
        await still_serving(harness)
        assert len(harness.server.connection_list) == 1
        for client in silent:
            client.writer.close()

    drive(test)


def test_a_stranger_that_announces_much_gets_no_memory_for_it() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.raw(b"\x00\x01\x00\x00" + b"\xfeSMB")
        await still_serving(harness)
        assert harness.server.buffers.lent == 0
        client.writer.close()

    drive(test)
