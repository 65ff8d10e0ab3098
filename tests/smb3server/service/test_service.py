"""What the command puts together: listeners on both address families, SMB Direct on the TCP port, several fabrics,
guests and anonymous users, and what it refuses to start with."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import spnego

from smb3server.client.protocol import Client, ClientSession, ServerError, open_rdma, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config.error import ConfigError
from smb3server.service.service import Service
from smb3server.wire.create import CreateDisposition
from smb3server.wire.header import Command
from smb3server.wire.session import SESSION_SETUP_REQUEST, SessionSetupRequest
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.iwarp import IwarpProvider
from tests.lab.anonymous import NEGOTIATE, authenticate
from tests.lab.services import configured, port_of, running

HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and bool(Path("/proc/net/if_inet6").read_text())


async def write_and_read(
    transport: MessageTransport, user: str = "u", password: str = "pw", sign: bool = True
) -> bytes:
    client = await Client.connect(transport)
    try:
        session = await client.log_on(user, password, sign=sign, guest=not sign)
        tree = await session.tree_connect("share")
        file = await tree.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
        await tree.write(file, 0, b"content")
        data = await tree.read(file, 0, 100)
        await tree.close(file)
    finally:
        await client.close()
    return data


def test_the_tcp_port_takes_iwarp_too(tmp_path: Path) -> None:
    """The first byte tells them apart: 0 is direct TCP, M is MPA, anything else is neither."""

    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1", "--rdma=iwarp")) as service:
            port = port_of(service, "tcp", "127.0.0.1")
            assert port != port_of(service, "iwarp", "127.0.0.1")
            assert await write_and_read(await open_tcp("127.0.0.1", port)) == b"content"
            transport = await open_rdma(IwarpProvider(), "127.0.0.1", port)
            assert transport.rdma is not None
            assert await write_and_read(transport) == b"content"
            assert await write_and_read(
                await open_rdma(IwarpProvider(), "127.0.0.1", port_of(service, "iwarp", "127.0.0.1"))
            )
            for first in (b"m", b"\xff", b"GET / HTTP/1.0\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(first)
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await asyncio.wait_for(reader.readexactly(1), 5)
                writer.close()

    asyncio.run(test())


def test_without_iwarp_the_tcp_port_refuses_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1")) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service, "tcp", "127.0.0.1"))
            writer.write(b"MPA ID Req Frame\x40\x01\0\0")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(1), 5)
            writer.close()

    asyncio.run(test())


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_both_address_families(tmp_path: Path) -> None:
    """Without --listen all addresses of both families are served, on the same TCP port."""

    async def test() -> None:
        async with running(configured(tmp_path, "--rdma=iwarp")) as service:
            port = port_of(service, "tcp", "0.0.0.0")
            assert port_of(service, "tcp", "[::]") == port
            for host in ("127.0.0.1", "::1"):
                assert await write_and_read(await open_tcp(host, port)) == b"content"
                assert await write_and_read(await open_rdma(IwarpProvider(), host, port)) == b"content"
            for host, shown in (("127.0.0.1", "0.0.0.0"), ("::1", "[::]")):
                rdma = await open_rdma(IwarpProvider(), host, port_of(service, "iwarp", shown))
                assert await write_and_read(rdma) == b"content"

    asyncio.run(test())


def test_an_address_that_is_none(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match="not an IP address"):
            async with running(configured(tmp_path, "--listen", "localhost")):
                pass

    asyncio.run(test())


async def refused(work: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    with pytest.raises(ServerError) as caught:
        await work()
    return caught.value.status


@asynccontextmanager
async def client_of(service: Service) -> AsyncIterator[Client]:
    client = await Client.connect(await open_tcp("127.0.0.1", port_of(service, "tcp", "127.0.0.1")))
    try:
        yield client
    finally:
        await client.close()


GUESTS = "[server]\nguest = true\n[[share]]\nname = 'public'\npath = '/'\nguest = true\nread_only = true\n"


def test_guests_see_the_shares_for_guests_only(tmp_path: Path) -> None:
    async def test() -> None:
        config = configured(tmp_path, "--listen", "127.0.0.1", text=GUESTS)
        async with running(config) as service, client_of(service) as client:
            session = await client.log_on("stranger", "whatever", sign=False, guest=True)
            await session.tree_connect("public")
            assert await refused(lambda: session.tree_connect("share")) == NtStatus.ACCESS_DENIED
        async with running(config) as service, client_of(service) as client:
            assert await refused(lambda: client.log_on("u", "wrong")) == NtStatus.LOGON_FAILURE

    asyncio.run(test())


def test_the_option_guest_opens_every_share(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1", "--guest")) as service:
            transport = await open_tcp("127.0.0.1", port_of(service, "tcp", "127.0.0.1"))
            assert await write_and_read(transport, "stranger", "whatever", sign=False) == b"content"

    asyncio.run(test())


@pytest.mark.parametrize("key", ["require_signing", "require_encryption"])
def test_no_guests_where_everything_is_protected(tmp_path: Path, key: str) -> None:
    """They have no key to protect anything with."""

    async def test() -> None:
        text = f"[server]\nguest = true\nanonymous = true\n{key} = true\n"
        async with running(configured(tmp_path, "--listen", "127.0.0.1", text=text)) as service:
            async with client_of(service) as client:
                assert await refused(lambda: client.log_on("stranger", "pw", sign=False)) == NtStatus.ACCESS_DENIED
            async with client_of(service) as client:
                assert await refused(lambda: anonymous(client)) == NtStatus.ACCESS_DENIED

    asyncio.run(test())


async def anonymous(client: Client) -> ClientSession:
    """Log on with neither name nor password. Raises ``ServerError``."""
    session = ClientSession(client)
    for token in (NEGOTIATE, authenticate()):
        reply = await session._exchange(token)
        session.session_id = reply.header.session_id
        session.flags = reply.message[66] | reply.message[67] << 8
        reply.release()
    return session


def test_anonymous_users_only_where_allowed(tmp_path: Path) -> None:
    """They see IPC$ and what is for guests."""

    async def test() -> None:
        config = configured(tmp_path, "--listen", "127.0.0.1")
        async with running(config) as service, client_of(service) as client:
            assert await refused(lambda: anonymous(client)) == NtStatus.LOGON_FAILURE
            assert not service.server.sessions.by_id
        config = configured(tmp_path, "--listen", "127.0.0.1", text=GUESTS.replace("guest", "anonymous", 1))
        async with running(config) as service, client_of(service) as client:
            session = await anonymous(client)
            assert session.flags & 2
            await session.tree_connect("IPC$")
            await session.tree_connect("public")
            assert await refused(lambda: session.tree_connect("share")) == NtStatus.ACCESS_DENIED

    asyncio.run(test())


def test_a_session_expires_and_lives_on_when_it_authenticates_again(tmp_path: Path) -> None:
    """3.3.5.2.9: only CLOSE, LOCK and LOGOFF still work (3.3.5.5.3: the open survives)."""

    async def test() -> None:
        async with running(configured(tmp_path, "--listen", "127.0.0.1")) as service, client_of(service) as client:
            session = await client.log_on("u", "pw", sign=True)
            tree = await session.tree_connect("share")
            first, second = [
                await tree.create(name, READ_WRITE, CreateDisposition.CREATE) for name in ("first", "second")
            ]
            known = service.server.sessions.by_id[session.session_id]
            known.expiration_time = time.monotonic() - 1
            expired = NtStatus.NETWORK_SESSION_EXPIRED
            assert await refused(lambda: tree.write(first, 0, b"late")) == expired
            assert await refused(lambda: session.tree_connect("share")) == expired
            assert await refused(lambda: tree.create("third", READ_WRITE, CreateDisposition.CREATE)) == expired
            await tree.close(second)
            again = ClientSession(client)
            again.session_id, again.signer, again.sign = session.session_id, session.signer, True
            context = spnego.client("u", "pw", hostname="127.0.0.1", service="cifs", protocol="ntlm")
            token = context.step()
            while token:
                reply = await client.call(
                    Command.SESSION_SETUP,
                    setup_request(token),
                    again,
                    accept=(NtStatus.SUCCESS, NtStatus.MORE_PROCESSING_REQUIRED),
                )
                offset, length = struct.unpack_from("<HH", reply.message, 68)
                answer = bytes(reply.message[offset : offset + length])
                token = None if reply.status == NtStatus.SUCCESS else context.step(answer)
                reply.release()
            assert await tree.write(first, 0, b"content") == 7
            assert known.expiration_time is None
            await session.log_off()
            assert not service.server.opens.by_id

    asyncio.run(test())


def setup_request(token: bytes) -> list[bytes]:
    fixed = SessionSetupRequest(security_mode=1, security_buffer_offset=88, security_buffer_length=len(token))
    return [SESSION_SETUP_REQUEST.pack(fixed), token]


@pytest.mark.parametrize("missing", ["gssapi", "krb5"])
def test_a_keytab_without_the_libraries_is_an_error(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    async def test() -> None:
        config = configured(tmp_path, "--listen", "127.0.0.1", text="[server]\nkeytab = '/nowhere/krb5.keytab'\n")
        with pytest.raises(ConfigError, match=r"keytab /nowhere/krb5.keytab: .*pip install '\.\[kerberos\]'"):
            async with running(config):
                pass

    asyncio.run(test())


def test_the_command_says_why_it_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "kerberos.toml").write_text("[server]\nkeytab = '/nowhere/krb5.keytab'\n")
    command = [sys.executable, "-m", "smb3server", "--config", str(tmp_path / "kerberos.toml"), "--port", "0"]
    ended = subprocess.run(
        [*command, "--share", f"share={tmp_path}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("smb3server: keytab /nowhere/krb5.keytab: ")
    assert "Traceback" not in ended.stderr
    assert "ready" not in ended.stdout


def test_a_port_in_use_is_named_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])

        async def test(*options: str) -> str:
            with pytest.raises(ConfigError) as caught:
                async with running(configured(tmp_path, *options)):
                    pass
            return str(caught.value)

        said = asyncio.run(test("--listen", "127.0.0.1", "--port", port))
        assert said.startswith(f"TCP port {port} on 127.0.0.1 is already this server's own")
        said = asyncio.run(test("--listen", "192.0.2.1", "--port", "0"))
        assert said.startswith("TCP port 0 on 192.0.2.1: this machine does not have the address")
