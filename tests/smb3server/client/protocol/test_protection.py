"""The client works with nobody who does not prove that it knows the password, unless it was asked to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from smb3server.client.protocol import Client, open_tcp
from smb3server.client.protocol.messages import ServerError, UnprovenServer
from smb3server.client.protocol.negotiation import DIALECTS
from smb3server.client.protocol.session import BoundSession
from smb3server.service.service import Service
from smb3server.wire.header import Command
from smb3server.wire.negotiate import Capability, Dialect
from smbdirect.errors import ConnectionLost, ProtocolError
from tests.lab import meddler
from tests.lab.services import configured, port_of, running

OPEN_TO_ALL = "[server]\nguest = true\nanonymous = true\n[[share]]\nname = 'public'\npath = '{}'\nguest = true\n"
GUEST, NOBODY = 1, 2


def config_for_all(tmp_path: Path) -> Any:
    (tmp_path / "public").mkdir()
    return configured(tmp_path, "--listen", "127.0.0.1", text=OPEN_TO_ALL.format(tmp_path / "public"))


async def through(port: int, dialects: tuple[int, ...] = DIALECTS) -> Client:
    return await Client.connect(await open_tcp("127.0.0.1", port), dialects)


def tcp_port(service: Service) -> int:
    return port_of(service, "tcp", "127.0.0.1")


@pytest.mark.parametrize("dialect", [Dialect.SMB_2_1, Dialect.SMB_3_0, Dialect.SMB_3_1_1], ids=hex)
@pytest.mark.parametrize("guest", [True, False], ids=["guest", "nobody"])
@pytest.mark.parametrize("sign", [True, False], ids=["signed", "unsigned"])
def test_a_server_that_takes_everybody_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: int, guest: bool, sign: bool
) -> None:
    meddler.accept_everybody(monkeypatch, guest=guest)

    async def test() -> None:
        async with running(config_for_all(tmp_path)) as service:
            client = await through(tcp_port(service), (dialect,))
            with pytest.raises(UnprovenServer, match="need not know the password"):
                await client.log_on("u", "pw", sign=sign)
            assert not client.sessions
            if sign or not guest:
                with pytest.raises(UnprovenServer):
                    await client.log_on("u", "pw", sign=sign, guest=True)
            else:
                session = await client.log_on("u", "pw", guest=True)
                assert session.signer is None and not session.sign
            with pytest.raises(UnprovenServer, match="encryption"):
                await client.log_on(encrypt=True)
            await client.close()

    asyncio.run(test())


@pytest.mark.parametrize("flags", [GUEST, NOBODY])
@pytest.mark.parametrize("dialect", [Dialect.SMB_2_1, Dialect.SMB_3_1_1], ids=hex)
def test_flags_that_somebody_sets_on_the_way(tmp_path: Path, flags: int, dialect: int) -> None:
    async def test() -> None:
        async with (
            running(config_for_all(tmp_path)) as service,
            meddler.between(tcp_port(service), meddler.as_session(flags)) as port,
        ):
            client = await through(port, (dialect,))
            with pytest.raises(UnprovenServer):
                await client.log_on("u", "pw")
            await client.close()

    asyncio.run(test())


@pytest.mark.parametrize("dialect", [Dialect.SMB_2_1, Dialect.SMB_3_0_2, Dialect.SMB_3_1_1], ids=hex)
@pytest.mark.parametrize("channel", [False, True], ids=["session", "channel"])
def test_answers_without_signature_end_the_connection(tmp_path: Path, dialect: int, channel: bool) -> None:
    if channel and dialect < Dialect.SMB_3_0:
        return

    async def test() -> None:
        async with (
            running(configured(tmp_path, "--listen", "127.0.0.1")) as service,
            meddler.between(tcp_port(service), meddler.unsigned) as port,
        ):
            if channel:
                first = await through(tcp_port(service), (dialect,))
                session = await first.log_on("u", "pw", sign=True)
                tree = await session.tree_connect("share")
                transport = await open_tcp("127.0.0.1", port)
                client = await Client.connect(transport, (dialect,), client_guid=first.client_guid)
                bound = await BoundSession.bind(session, client, "u", "pw")
                with pytest.raises(ConnectionLost, match="neither signed nor encrypted"):
                    await tree.on(bound).create("a")
                await first.close()
                return
            client = await through(port, (dialect,))
            session = await client.log_on("u", "pw", sign=True)
            with pytest.raises(ConnectionLost, match="neither signed nor encrypted"):
                await session.tree_connect("share")

    asyncio.run(test())


def without_encryption(message: bytearray) -> None:
    if meddler.command_of(message) == Command.NEGOTIATE:
        message[64 + 24] &= ~int(Capability.ENCRYPTION) & 0xFF


@pytest.mark.parametrize("sign", [True, False], ids=["signed", "unsigned"])
def test_a_negotiation_that_somebody_changes_is_found_at_the_first_share(tmp_path: Path, sign: bool) -> None:
    """Whoever makes the session, and whether the session signs: dialects before 3.1.1 are asked. [MS-SMB2 3.2.5.5]"""

    async def test() -> None:
        async with (
            running(configured(tmp_path, "--listen", "127.0.0.1")) as service,
            meddler.between(tcp_port(service), without_encryption) as port,
        ):
            client = await through(port, (Dialect.SMB_2_1, Dialect.SMB_3_0))
            session = await client.log_on("u", "pw", sign=sign)
            with pytest.raises(ProtocolError, match="negotiation was changed"):
                await session.tree_connect("share")

    asyncio.run(test())


@pytest.mark.parametrize("dialect", [Dialect.SMB_2_1, Dialect.SMB_3_0, Dialect.SMB_3_0_2], ids=hex)
def test_an_honest_negotiation_is_valid(tmp_path: Path, dialect: int) -> None:
    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1")) as service:
            for offered in ((dialect,), tuple(number for number in DIALECTS if number <= dialect)):
                client = await through(tcp_port(service), offered)
                session = await client.log_on("u", "pw", sign=True)
                await session.tree_connect("share")
                await session.tree_connect("IPC$")
                await client.close()

    asyncio.run(test())


def test_nothing_goes_out_unprotected_where_a_key_is_missing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1")) as service:
            client = await through(tcp_port(service))
            session = await client.log_on("u", "pw", sign=True)
            tree = await session.tree_connect("share")
            signer, session.signer = session.signer, None
            sent = client.transport.traffic.inline_bytes_sent
            for attempt in (tree.create("a", disposition=3), session.tree_connect("IPC$"), session.log_off()):
                with pytest.raises(ProtocolError, match="must be signed"):
                    await attempt
            session.signer, session.cipher, session.encrypt = signer, None, True
            with pytest.raises(ProtocolError, match="must be encrypted"):
                await tree.create("a", disposition=3)
            with pytest.raises(ProtocolError, match="no key"):
                session.signer = None
                await BoundSession.bind(session, client, "u", "pw")
            assert client.transport.traffic.inline_bytes_sent == sent
            session.signer, session.encrypt = signer, False
            with pytest.raises(ServerError):
                await tree.create("none")
            await client.close()

    asyncio.run(test())


def test_an_answer_sealed_for_another_session_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1")) as service:
            client = await through(tcp_port(service))
            one, other = [await client.log_on("u", "pw", encrypt=True) for _ in range(2)]
            started = await client.start(Command.ECHO, [b"\4\0\0\0"], one)
            started.session = other
            with pytest.raises(ConnectionLost, match="encrypted for another session"):
                await client.finish(started)

    asyncio.run(test())


def test_anonymous_users_get_in_where_the_server_lets_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(config_for_all(tmp_path)) as service:
            client = await through(tcp_port(service))
            session = await client.log_on()
            assert session.flags & NOBODY and not session.sign
            tree = await session.tree_connect("public")
            await tree.close(await tree.create(""))
            await client.close()

    asyncio.run(test())
