"""SMB over QUIC: a server with its certificate, clients with and without one, and strangers. [MS-SMB2 2.1]"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aioquic.asyncio.client import connect as quic_connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode
from cryptography import x509

from smb3server.client import connect
from smb3server.client.errors import RemoteError
from smb3server.client.options import ConnectOptions
from smb3server.client.protocol import Client
from smb3server.client.protocol.negotiation import Offer
from smb3server.net.quic import connection as quic_connection
from smb3server.net.quic.certificates import ClientRules, fingerprint, read
from smb3server.net.quic.client import open_quic
from smb3server.service import ConfigError, Service, Share, User
from tests.lab.authority import Authority
from tools.support import own_user

HERE = "127.0.0.1"
ALICE = User("alice", password="wonderland")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


@asynccontextmanager
async def served(authority: Authority, tmp_path: Path, share: Any = (), **keys: Any) -> AsyncIterator[Service]:
    """Serve ``tmp_path / data`` as the share ``data``."""
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    quic = {key: keys.pop(key) for key in ("client_authority", "clients") if key in keys}
    certificate = authority.make("server", [HERE], ["nas.test"])
    async with Service(
        shares=[Share("data", str(folder), force_user=own_user.NAME, **dict(share))],
        users=[ALICE],
        listen=[HERE],
        port=0,
        quic={"certificate": str(certificate), "port": 0, **quic},
        **keys,
    ) as service:
        yield service


def port_of(service: Service) -> int:
    assert service.quic is not None
    return service.quic.listeners[0].address[1]


def options(authority: Authority, **more: Any) -> dict[str, Any]:
    return {"quic": True, "quic_authority": authority.path, "password": "wonderland", **more}


def url(service: Service) -> str:
    return f"smb://alice@{HERE}:{port_of(service)}/data"


def test_files_of_any_size_travel(authority: Authority, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)

    async def body() -> None:
        async with served(authority, tmp_path) as service, connect(url(service), **options(authority)) as share:
            assert share.transport == "quic"
            for size in (0, 1, 65535, len(content)):
                await share.write_bytes("a", content[:size])
                assert await share.read_bytes("a") == content[:size]
            connection = next(iter(service.server.connection_list))
            assert connection.transport.fabric == "quic"
            assert any(text.startswith("quic ") for text in service.addresses())

    run(body)


# What need not be encrypted twice


@pytest.mark.parametrize("rule", ["require_encryption", "encrypt"])
def test_what_quic_encrypts_smb_need_not(authority: Authority, tmp_path: Path, rule: str) -> None:
    """[MS-SMB2 3.3.5.4, 3.3.5.5.3, 3.3.5.7]"""

    async def body() -> None:
        share = {"encrypt": True} if rule == "encrypt" else {}
        server = {"require_encryption": True} if rule != "encrypt" else {}
        async with served(authority, tmp_path, share, **server) as service:
            for encrypt in (False, True):
                async with connect(url(service), **options(authority, encrypt=encrypt)) as found:
                    await found.write_bytes("a", b"b")
                    session = next(iter(service.server.sessions.by_id.values()))
                    tree = next(iter(session.tree_connect_table.values()))
                    assert session.transport_secured is not encrypt
                    assert tree.encrypt_data is encrypt
            async with connect(
                f"smb://alice@{HERE}:{service.address[1]}/data", password="wonderland", rdma="off"
            ) as found:
                session = next(iter(service.server.sessions.by_id.values()))
                assert next(iter(session.tree_connect_table.values())).encrypt_data

    run(body)


def test_a_session_that_is_not_encrypted_gets_no_channel_over_tcp(authority: Authority, tmp_path: Path) -> None:
    from smb3server.client.protocol.session import BoundSession
    from smb3server.client.protocol.transports import open_tcp
    from smb3server.wire.status import NtStatus, StatusError

    async def body() -> None:
        async with served(authority, tmp_path, {"encrypt": True}) as service:
            first = await Client.connect(
                await open_quic(HERE, port_of(service), authority.path), offer=Offer(transport_security=True)
            )
            session = await first.log_on("alice", "wonderland")
            offer = Offer(transport_security=True)
            tcp = await open_tcp(HERE, service.address[1])
            second = await Client.connect(tcp, [0x0311], offer, client_guid=first.client_guid)
            # Over TCP the offer means nothing (3.3.5.4).
            with pytest.raises(StatusError) as refused:
                await BoundSession.bind(session, second, "alice", "wonderland")
            assert refused.value.status == NtStatus.ACCESS_DENIED
            await second.close()
            await first.close()

    run(body)


# Whose certificates count


def test_clients_need_a_certificate_of_the_authority(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    good = authority.make("good", client=True)
    refused = {
        "none": None,
        "of another authority": other.make("foreign", client=True),
        "expired": authority.make("expired", days=-1, client=True),
        "for servers": authority.make("wrong", client=False),
    }

    async def body() -> None:
        async with served(authority, tmp_path, client_authority=str(authority.path)) as service:
            async with connect(url(service), **options(authority, quic_certificate=good)) as share:
                await share.write_bytes("a", b"b")
            for why, path in refused.items():
                with pytest.raises(RemoteError):
                    async with connect(url(service), **options(authority, quic_certificate=path, patience=0)):
                        pytest.fail(f"let in: {why}")
            assert not service.server.connection_list and not len(service.server.silent_peers)

    run(body)


def test_clients_that_are_listed(authority: Authority, tmp_path: Path) -> None:
    good, bad = authority.make("good", client=True), authority.make("bad", client=True)
    listed = fingerprint(x509.load_pem_x509_certificate(good.read_bytes()))
    with_colons = ":".join(listed[i : i + 2] for i in range(0, 64, 2)).upper()

    async def body() -> None:
        async with served(authority, tmp_path, clients=[with_colons]) as service:
            async with connect(url(service), **options(authority, quic_certificate=good)):
                pass
            with pytest.raises(RemoteError):
                async with connect(url(service), **options(authority, quic_certificate=bad, patience=0)):
                    pass

    run(body)
    assert ClientRules(None, ()).refusal([]) == "" and ClientRules(None, [listed]).refusal([]) == "no certificate"


def test_a_list_with_something_else_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the SHA-256 of a certificate"):
        Service(quic={"certificate": "x", "clients": ["alice"]})


def test_the_servers_certificate_must_be_for_its_name(authority: Authority, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service:
            stranger = Authority(tmp_path, "stranger")
            with pytest.raises(OSError, match="QUIC"):
                await open_quic(HERE, port_of(service), stranger.path)
            with pytest.raises(OSError, match="localhost"):
                await open_quic("localhost", port_of(service), authority.path)

    run(body)


def test_a_renewed_certificate_counts_for_new_connections(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service, connect(url(service), **options(authority)) as old:
            fresh = Authority(tmp_path, "fresh")
            shutil.copy(fresh.make("renewed", [HERE]), tmp_path / "server.pem")
            await service.reload()
            async with connect(url(service), **options(fresh)) as share:
                await share.write_bytes("a", b"b")
            assert await old.read_bytes("a") == b"b"
            (tmp_path / "server.pem").write_text("broken")
            await service.reload()
            async with connect(url(service), **options(fresh)):
                pass

    run(body)
    assert "QUIC keeps its certificate" in caplog.text and "Traceback" not in caplog.text


@pytest.mark.parametrize("damage", ["missing", "text", "no key", "other key"])
def test_certificates_that_cannot_be_used(authority: Authority, tmp_path: Path, damage: str) -> None:
    path = authority.make("damaged", [HERE])
    head, _, key = path.read_text().partition("-----BEGIN PRIVATE")
    other = tmp_path / "other.key"
    other.write_text("-----BEGIN PRIVATE" + authority.make("another").read_text().partition("-----BEGIN PRIVATE")[2])
    if damage == "missing":
        path.unlink()
    elif damage == "text":
        path.write_text("certificate")
    elif damage == "no key":
        path.write_text(head)
    with pytest.raises(ValueError, match=r"damaged\.pem: "):
        read(path, other if damage == "other key" else None)
    assert key


# What strangers can do


def raw(authority: Authority, **more: Any) -> QuicConfiguration:
    made = QuicConfiguration(alpn_protocols=["smb"], is_client=True, server_name=HERE, **more)
    made.load_verify_locations(cafile=str(authority.path))
    return made


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_nothing_is_kept_of_an_address_that_is_not_proved(authority: Authority, tmp_path: Path) -> None:
    """[RFC 9000 8.1.2]"""

    async def body() -> None:
        async with served(authority, tmp_path) as service:
            assert service.quic is not None
            server = service.quic.listeners[0]._server
            assert server is not None
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                for _ in range(50):
                    quic = QuicConnection(configuration=raw(authority))
                    quic.connect((HERE, 1), now=0)
                    for data, _ in quic.datagrams_to_send(now=0):
                        sock.sendto(data, (HERE, port_of(service)))
                answered = 0
                for _ in range(50):
                    answered += len(await asyncio.get_running_loop().sock_recv(sock, 2000))
            assert not server._protocols and not len(service.server.silent_peers)
            # What is sent to an address that may be another's is less than what came.
            assert answered < 50 * 1200

    run(body)


def test_packets_of_any_kind_end_nothing(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service, connect(url(service), **options(authority)) as share:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for number in range(400):
                    first = bytes([(0x40, 0xC0, 0xE0, 0xF0, 0x00, 0xFF)[number % 6]])
                    version = (b"\0\0\0\1", b"\x6b\x33\x43\xcf", b"\0\0\0\0", b"\x1a\x2a\x3a\x4a")[number % 4]
                    sock.sendto(first + version + os.urandom(number * 3), (HERE, port_of(service)))
            await share.write_bytes("a", b"b")
            assert await share.read_bytes("a") == b"b"

    run(body)
    assert "cannot handle" not in caplog.text


def test_who_says_nothing_is_dropped(authority: Authority, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service:
            assert service.quic is not None
            service.quic.listeners[0]._timeout = 0.2
            async with quic_connect(HERE, port_of(service), configuration=raw(authority)) as client:
                assert len(service.server.silent_peers) == 1
                await client.wait_closed()
            assert not len(service.server.silent_peers) and not service.server.connection_list

    run(body)


def test_the_table_of_strangers_counts_quic(authority: Authority, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service:
            service.server.silent_peers.limit = 3
            kept = [quic_connect(HERE, port_of(service), configuration=raw(authority)) for _ in range(3)]
            clients = [await entered.__aenter__() for entered in kept]
            with pytest.raises(ConnectionError):
                async with quic_connect(HERE, port_of(service), configuration=raw(authority)):
                    pass
            assert len(service.server.silent_peers) == 3
            for entered in kept:
                await entered.__aexit__(None, None, None)
            await until(lambda: not len(service.server.silent_peers))
            assert clients

    run(body)


@pytest.mark.parametrize("first", [True, False])
def test_a_second_stream_ends_the_connection(authority: Authority, tmp_path: Path, first: bool) -> None:
    async def body() -> None:
        async with (
            served(authority, tmp_path) as service,
            quic_connect(HERE, port_of(service), configuration=raw(authority)) as client,
        ):
            if first:
                client._quic.send_stream_data(0, b"\0\0")
                client.transmit()
                await until(lambda: service.server.connection_list)
            client._quic.send_stream_data(4, b"\0\0")
            client.transmit()
            await client.wait_closed()
            assert not service.server.connection_list and not len(service.server.silent_peers)

    run(body)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\xff\xff\xff" + bytes(500), b"\0\0\0\4abcd"], ids=["http", "long", "short"]
)
def test_what_is_no_message_ends_the_connection(authority: Authority, tmp_path: Path, data: bytes) -> None:
    async def body() -> None:
        async with (
            served(authority, tmp_path) as service,
            quic_connect(HERE, port_of(service), configuration=raw(authority)) as client,
        ):
            _, writer = await client.create_stream()
            writer.write(data)
            await client.wait_closed()
            assert not service.server.connection_list and not len(service.server.unauthenticated)

    run(body)


def test_another_protocol_is_refused(authority: Authority, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service:
            made = raw(authority)
            made.alpn_protocols = ["h3"]
            with pytest.raises(ConnectionError):
                async with quic_connect(HERE, port_of(service), configuration=made):
                    pass

    run(body)


def test_a_peer_may_not_have_more_on_the_way_than_its_window(authority: Authority, tmp_path: Path) -> None:
    """The window moves on only while what arrives is taken. [RFC 9000 4.1]"""

    async def body() -> None:
        async with (
            served(authority, tmp_path) as service,
            quic_connect(HERE, port_of(service), configuration=raw(authority)) as client,
        ):
            _, writer = await client.create_stream()
            writer.write(b"\0\0\xff\0")
            await until(lambda: service.server.connection_list)
            transport = next(iter(service.server.connection_list)).transport
            transport.pause_reading()
            writer.write(bytes(1 << 20))
            window = transport._window  # type: ignore[attr-defined]
            await until(lambda: window.used >= quic_connection.UNTRUSTED_WINDOW)
            # Nothing further comes, however long one waits: the peer has no right to send it.
            assert client._quic._remote_max_data == window.value
            assert sum(map(len, transport._arrived)) <= quic_connection.UNTRUSTED_WINDOW  # type: ignore[attr-defined]
            transport.resume_reading()
            await client.wait_closed()

    run(body)


def test_the_window_is_not_the_sum_of_what_came() -> None:
    window = quic_connection.Window(1000)
    for _ in range(100):
        window.used += 400
        if window.used * 2 > window.value:
            window.value *= 2
        assert 500 <= window.value - window.used <= 1000
    window.open, before = False, window.value
    window.used = before
    window.value *= 2
    assert window.value == before
    window.widen(5000)
    assert window.value == before + 5000


def test_what_the_credits_pay_for_fits_the_window() -> None:
    from smb3server.state.objects import QUIC_CREDITS

    assert QUIC_CREDITS * 65536 + (1 << 20) <= quic_connection.TRUSTED_WINDOW


def test_a_server_that_stops_tells_its_clients(authority: Authority, tmp_path: Path) -> None:
    async def body() -> None:
        async with served(authority, tmp_path) as service:
            transport = await open_quic(HERE, port_of(service), authority.path)
            ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            transport.start(lambda message: message.release(), ended.set_result)
            transport.send([bytes(64)])
            await until(lambda: service.server.connection_list or ended.done())
        async with asyncio.timeout(10):
            await ended

    run(body)


def test_options_that_contradict_each_other() -> None:
    for wrong in ({"rdma": "iwarp"}, {"channels": 2}):
        with pytest.raises(ValueError, match="quic"):
            ConnectOptions(quic=True, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need quic"):
        ConnectOptions(quic_key="x")
    assert ssl.HAS_TLSv1_3 and QuicErrorCode.NO_ERROR == 0
