"""Every port that a fully configured server listens on, and what a stranger at one address can do there.

RoCE's datagrams have no connections: the cases of ``tools.attacks.roce`` are about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import json
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from smb3server.admin.socket import SOCKET_NAME
from smb3server.auth.users import Account, nt_hash
from smb3server.config.model import Config, ShareConfig
from smb3server.discovery import announcer, wsd
from smb3server.net import http
from smb3server.net.host_lists import HostLists
from smb3server.observing import metrics_port
from smb3server.rpc import tcp as rpc_tcp
from smb3server.service.service import Service
from smb3server.settings.discovery import DiscoveryConfig
from smb3server.settings.observing import MetricsSettings
from smb3server.settings.server import Settings
from smb3server.settings.web import WebConfig
from smb3server.settings.witness import WitnessConfig
from smb3server.web import serving
from smbdirect.providers.iwarp import mpa
from smbdirect.providers.iwarp import provider as iwarp
from tools.attacks.raw import negotiate
from tools.cluster.certificates import Authority
from tools.fuzz.pipes import MAPPER, WITNESS, bind, pdu
from tools.support import own_user
from tools.support.ports import free_port
from tools.support.server_process import listening_ports

STRANGER, OTHER, DENIED = "127.0.0.81", "127.0.0.82", "127.0.0.83"
MOST = 80
"""Connections without a session that the server is configured for."""
FEW = 7
"""Connections that one address may have at any door at the same time."""
Scene = Callable[[dict[str, int]], Awaitable[None]]
Play = Callable[[Scene], None]
SOON = 15.0
"""Seconds. Nothing here takes a second, but the machine may be busy."""


class Door(NamedTuple):
    """A port, and a request there."""

    request: bytes
    answer: bytes
    """Bytes of the answer."""
    secure: bool = False
    """Whether TLS comes first: ``request`` is the beginning of a handshake then, and has no answer yet."""


_MPA = mpa.encode_frame(mpa.REQUEST_KEY, mpa.request_frame(b"", False))
_GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
DOORS = {
    "smb": Door(negotiate(), b"\xfeSMB"),
    "iwarp": Door(_MPA, mpa.REPLY_KEY),
    "witness": Door(pdu(11, bind(WITNESS)), b"\5\0"),
    "endpoint mapper": Door(pdu(11, bind(MAPPER)), b"\5\0\x0c"),
    "page": Door(b"\x16\x03\1\2\0\1\0\1\xfc\3\3", b"", secure=True),
    "metrics": Door(_GET % b"/healthz", b"ok\n"),
    "metadata": Door(_GET % b"/", b"HTTP/1.1 4"),
}


def _ports(service: Service) -> dict[str, int]:
    assert service.witness is not None
    assert service.witness.service.mapper_port is not None
    assert service.web is not None
    assert service.observing.port is not None
    assert service.announcer is not None
    assert service.announcer._wsd is not None
    return {
        "smb": service.listeners[0].address[1],
        "iwarp": next(listener.address[1] for name, listener in service.fabrics.listeners if name == "iwarp"),
        "witness": service.witness.service.port,
        "endpoint mapper": service.witness.service.mapper_port,
        "page": int(service.web.url.rstrip("/").rpartition(":")[2]),
        "metrics": service.observing.port.address[1],
        "metadata": service.announcer._wsd.http_port,
    }


@contextlib.asynccontextmanager
async def all_doors(folder: Path) -> AsyncIterator[dict[str, int]]:
    (folder / "share").mkdir()
    page = Authority(folder).named("page")
    config = Config(
        [ShareConfig("data", folder / "share", force_user=own_user.CREDENTIALS)],
        [Account("u", nt_hash("pw"))],
        Settings(
            negotiate_timeout=1.0,
            authentication_timeout=1.0,
            max_connections=MOST,
            max_unauthenticated=MOST,
            max_unauthenticated_per_address=MOST,
            hosts=HostLists(deny=(ipaddress.ip_network(DENIED),)),
        ),
        ["127.0.0.1"],
        port=0,
        rdma="iwarp",
        rdma_port=free_port(),
        state=folder / "state",
        witness=WitnessConfig(port=free_port(), endpoint_mapper_port=free_port()),
        web=WebConfig(port=0, admins=frozenset({"u"}), certificate=page.cert, key=page.key),
        metrics=MetricsSettings(port=free_port()),
        discovery=DiscoveryConfig(mdns=False, interfaces=["lo"]),
    )
    before = listening_ports(os.getpid())
    service = Service(config)
    try:
        await service.start()
        async with asyncio.timeout(SOON):
            while service.announcer is None or service.announcer._wsd is None:
                await asyncio.sleep(0.02)
        ports = _ports(service)
        # Whoever adds a port adds it to these tests.
        assert listening_ports(os.getpid()) - before == set(ports.values())
        yield ports
    finally:
        await service.stop()


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in TIMES:
        assert getattr(module, name) > 0
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(announcer, "WsDiscovery", functools.partial(wsd.WsDiscovery, http_port=free_port()))
    monkeypatch.setattr(serving, "MAX_STRANGERS", MOST)
    # Here all clients are on this machine.
    monkeypatch.setattr(metrics_port, "is_this_machine", lambda address: False)


TIMES = (
    (rpc_tcp, "AUTHENTICATION_TIMEOUT"),
    (iwarp, "MPA_TIMEOUT"),
    (http, "HANDSHAKE_TIMEOUT"),
    (http, "FIRST_REQUEST"),
    (http, "BODY_TIMEOUT"),
    (metrics_port, "PATIENCE"),
)
"""How long strangers may take, besides the settings."""
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Plays a scene, without a parameter on the event loop that the server uses."""
    loop_factory = LOOPS[getattr(request, "param", list(LOOPS)[-1])]

    def played(scene: Scene) -> None:
        async def main() -> None:
            async with all_doors(tmp_path) as ports:
                await scene(ports)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    return played


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, address: str) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


@contextlib.asynccontextmanager
async def crowd(port: int, count: int, first: bytes = b"") -> AsyncIterator[list[Streams]]:
    """Connections of one address that send ``first`` and nothing else."""
    found: list[Streams] = []
    try:
        for _ in range(count):
            reader, writer = await connect(port, STRANGER)
            found.append((reader, writer))
            writer.write(first)
        yield found
    finally:
        for _, writer in found:
            writer.transport.abort()


async def received(streams: Streams, seconds: float = SOON) -> bytes | None:
    """Return what the server sends until it ends the connection; None if it does not end it in time."""
    data = b""
    try:
        async with asyncio.timeout(seconds):
            while part := await streams[0].read(65536):
                data += part
    except TimeoutError:
        return None
    except ConnectionResetError:
        return data
    return data


async def served(door: Door, port: int) -> bool:
    """Return whether another address is served."""
    reader, writer = await connect(port, OTHER)
    try:
        async with asyncio.timeout(SOON):
            writer.write(door.request)
            if door.secure:
                # The server waits for the rest of the handshake.
                return await received((reader, writer), 0.3) is None
            data = b""
            while door.answer not in data and (part := await reader.read(65536)):
                data += part
            return door.answer in data
    except (TimeoutError, ConnectionResetError):
        return False
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("run", LOOPS, indirect=True)
@pytest.mark.parametrize("half", [False, True], ids=["silent", "half a request"])
def test_who_sends_no_request_is_disconnected(run: Play, half: bool) -> None:
    async def at(name: str, door: Door, port: int) -> None:
        async with crowd(port, FEW, door.request[: len(door.request) // 2] if half else b"") as opened:
            answers = await asyncio.gather(*(received(streams) for streams in opened))
        assert None not in answers, f"{name}: {answers.count(None)} connections are held"

    async def scene(ports: dict[str, int]) -> None:
        await asyncio.gather(*(at(name, door, ports[name]) for name, door in DOORS.items()))

    run(scene)


def test_one_address_has_few_connections_and_others_are_served(run: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they may be silent."""
    for module, name in TIMES:
        monkeypatch.setattr(module, name, 60.0)

    async def scene(ports: dict[str, int]) -> None:
        for name, door in DOORS.items():
            async with crowd(ports[name], MOST * 2) as opened:
                answers = await asyncio.gather(*(received(streams, 0.3) for streams in opened))
                assert await served(door, ports[name]), f"{name}: another address is kept out"
            assert answers.count(None) <= MOST, f"{name}: {answers.count(None)} connections are held"

    run(scene)


def test_a_denied_address_is_not_read_from(run: Play) -> None:
    async def scene(ports: dict[str, int]) -> None:
        for name, door in DOORS.items():
            # Without a byte from the client, and with a whole request that others are answered.
            for first in (b"", door.request):
                streams = await connect(ports[name], DENIED)
                with contextlib.suppress(ConnectionError):
                    streams[1].write(first)
                answer = await received(streams)
                streams[1].transport.abort()
                assert answer == b"", f"{name}: a denied address gets {answer!r}"
            assert await served(door, ports[name]), name

    run(scene)


def test_without_descriptors_every_door_waits(run: Play, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Connections are accepted when there are descriptors again. Until then a door says so, once a second."""

    async def scene(ports: dict[str, int]) -> None:
        loop = asyncio.get_running_loop()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            made = [(door, ports[name], stack.enter_context(socket.socket())) for name, door in DOORS.items()]
            admin = stack.enter_context(socket.socket(socket.AF_UNIX))
            lowest = os.open(os.devnull, os.O_RDONLY)
            os.close(lowest)
            # The next descriptor would have this number.
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                for _, port, sock in made:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, ("127.0.0.1", port))
                admin.setblocking(False)
                await loop.sock_connect(admin, str(tmp_path / "state" / SOCKET_NAME))
                await asyncio.sleep(1.5)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(DOORS) < len(lines) <= 3 * (len(DOORS) + 1), [record.getMessage() for record in lines]
            assert not [record for record in lines if record.exc_info]
            async with asyncio.timeout(SOON):
                for door, _, sock in made:
                    await loop.sock_sendall(sock, door.request)
                    assert door.secure or await loop.sock_recv(sock, 65536)
                await loop.sock_sendall(admin, b'{"command": "ping"}\n')
                assert json.loads(await loop.sock_recv(admin, 65536)) == {"pid": os.getpid()}

    run(scene)
