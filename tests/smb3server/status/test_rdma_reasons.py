"""Why RDMA is not used: every reason, made to happen on a running server, as its report tells it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import spnego

from smb3server.backends.local import syscalls
from smb3server.client.protocol import Client, ClientSession, open_rdma
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.session import BoundSession
from smb3server.net.host import ROCE_UDP_PORT
from smb3server.status.rdma_reasons import _TEXTS, Code
from smb3server.wire.negotiate import Capability
from smbdirect.providers.base import Provider
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.loopback import CAPABILITIES, LoopbackProvider
from smbdirect.providers.roce import RoceProvider
from smbdirect.providers.verbs.provider import VerbsProvider
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.harness import WITHOUT_TRANSFORMS
from tests.lab.reports import collect
from tests.lab.scene import Scene, ask, log_on, play
from tools.support.ports import free_port

UNLISTED = "127.44.55.66"
"""A local address that is on no interface, so that no list of interfaces has it."""
SIZE = 65536


def simple(code: Code, **connect: Any) -> Callable[[Scene], Awaitable[None]]:
    """A client that logs on and asks for the interfaces, and the reason the report gives."""

    async def scene(acted: Scene) -> None:
        session = await log_on(await acted.tcp(**connect))
        if session.client.dialect >= 0x0300 and acted.service.config.settings.multichannel:
            await ask(session)
        assert acted.codes() == [code]

    return scene


def test_rdma_off(tmp_path: Path) -> None:
    play(tmp_path, simple(Code.OFF), rdma="off")


def test_no_provider(tmp_path: Path) -> None:
    """In auto everything fails for a reason of its own: no device, and ports that somebody else has."""

    async def scene(acted: Scene) -> None:
        await log_on(await acted.tcp())
        (channel,) = acted.report()
        assert channel["rdma"]["code"] == "no-provider"
        text = channel["rdma"]["text"]
        assert f"UDP port {ROCE_UDP_PORT}" in text
        assert "iwarp not served" in text
        assert "verbs not served" in text

    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        tcp.bind((UNLISTED, 0))
        tcp.listen()
        udp.bind((UNLISTED, ROCE_UDP_PORT))
        play(tmp_path, scene, "auto", UNLISTED, rdma_port=tcp.getsockname()[1])


def test_not_negotiated(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        with socket.create_connection(acted.service.listeners[0].address) as silent:
            silent.sendall(b"\0\0")
            await acted.until(Code.NOT_NEGOTIATED)

    play(tmp_path, scene)


def test_server_dialect(tmp_path: Path) -> None:
    play(tmp_path, simple(Code.SERVER_DIALECT), max_dialect=0x0210)


def test_client_dialect(tmp_path: Path) -> None:
    play(tmp_path, simple(Code.DIALECT, dialects=(0x0202, 0x0210)))


def test_server_multichannel_off(tmp_path: Path) -> None:
    play(tmp_path, simple(Code.SERVER_MULTICHANNEL_OFF), multichannel=False)


def test_client_no_multichannel(tmp_path: Path) -> None:
    play(tmp_path, simple(Code.CLIENT_NO_MULTICHANNEL, offer=Offer(capabilities=int(Capability.LARGE_MTU))))


def test_not_logged_on(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await acted.tcp()
        assert acted.codes() == [Code.NOT_LOGGED_ON]

    play(tmp_path, scene)


def test_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare NTLM: around it, SPNEGO would have the client verify with a key that a guest and the server do not share."""
    negotiate = spnego.client
    monkeypatch.setattr(spnego, "client", lambda *args, **kw: negotiate(*args, **{**kw, "protocol": "ntlm"}))

    async def scene(acted: Scene) -> None:
        client = await acted.tcp()
        session = await client.log_on("nobody-here", "x", guest=True)
        await ask(session)
        assert acted.codes() == [Code.GUEST]

    play(tmp_path, scene, allow_guest=True)


def test_not_asked(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await log_on(await acted.tcp())
        assert acted.codes() == [Code.NOT_ASKED]

    play(tmp_path, scene)


def test_not_flagged(tmp_path: Path) -> None:
    """SMB Direct is served on an address that is not in the list, and TCP on one that is."""

    async def scene(acted: Scene) -> None:
        acted.service.server.tcp_addresses.add("127.0.0.1")
        await simple(Code.NOT_FLAGGED)(acted)

    play(tmp_path, scene, host=UNLISTED)


def test_not_opened(tmp_path: Path) -> None:
    play(tmp_path, simple(Code.NOT_OPENED))


def test_channel_lost(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        tcp = await acted.tcp()
        await ask(await log_on(tcp))
        rdma = await acted.rdma(client_guid=tcp.client_guid)
        await acted.until(Code.NOT_OPENED, Code.NOT_LOGGED_ON)
        rdma.transport.send([b"\xfeSMB" + bytes(60)])
        await acted.until(Code.CHANNEL_LOST)
        assert "bad SMB2 header" in acted.report()[0]["rdma"]["text"]

    play(tmp_path, scene)


def test_used_on_another_channel(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        tcp = await acted.tcp()
        session = await log_on(tcp)
        bound = await BoundSession.bind(session, await acted.rdma(client_guid=tcp.client_guid), "u", "pw")
        assert acted.codes() == [Code.USED_ON_ANOTHER_CHANNEL, Code.NO_TRANSFERS]
        await bound.tree_connect("data")

    play(tmp_path, scene)


async def move(client: Client, session: ClientSession) -> None:
    """Write and read ``SIZE`` bytes by RDMA."""
    tree = await session.tree_connect("data")
    file = await tree.create("moved", access=0x0012019F, disposition=5)
    transport = client.transport
    assert isinstance(transport, SmbDirectTransport)
    memory = memoryview(bytearray(b"r" * SIZE))
    source = transport.rdma.register(memory, readable=True)
    assert await tree.write_from(file, 0, source.descriptors, SIZE) == SIZE
    sink = transport.rdma.register(memoryview(bytearray(SIZE)), writable=True)
    assert await tree.read_into(file, 0, sink.descriptors, SIZE) == SIZE
    assert bytes(sink.view) == bytes(memory)
    source.deregister()
    sink.deregister()


def test_used(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        client = await acted.rdma()
        session = await log_on(client)
        assert acted.codes() == [Code.NO_TRANSFERS]
        await move(client, session)
        (channel,) = acted.report()
        assert channel["rdma"]["code"] == "used"
        assert channel["fabric"] == "iwarp"
        assert channel["rdma_read_bytes"] == channel["rdma_write_bytes"] == SIZE
        assert channel["errors"] == 0

    play(tmp_path, scene)


def test_large_data_in_messages_has_its_reason(tmp_path: Path) -> None:
    """Whoever names no memory for RDMA is told so, not that nothing was large enough."""

    async def scene(acted: Scene) -> None:
        client = await acted.rdma()
        session = await log_on(client)
        tree = await session.tree_connect("data")
        file = await tree.create("inline", access=0x0012019F, disposition=5)
        client.exposed = None
        await tree.write(file, 0, b"i" * 4095)
        assert acted.codes() == [Code.NO_TRANSFERS]
        assert await tree.read(file, 0, 100_000) == b"i" * 4095
        assert acted.codes() == [Code.NO_DESCRIPTORS]
        assert "READ or WRITE of 100000 bytes" in acted.report()[0]["rdma"]["text"]
        await move(client, session)
        assert acted.codes() == [Code.USED]

    play(tmp_path, scene)


@pytest.mark.parametrize("size", [4096, 10_000])
def test_large_inline_writes_have_their_reason(tmp_path: Path, size: int) -> None:
    async def scene(acted: Scene) -> None:
        client = await acted.rdma()
        tree = await (await log_on(client)).tree_connect("data")
        client.exposed = None
        await tree.write(await tree.create("inline", access=0x0012019F, disposition=5), 0, bytes(size))
        assert acted.codes() == [Code.NO_DESCRIPTORS]

    play(tmp_path, scene)


class Fabric(NamedTuple):
    make: Callable[[], Provider]
    name: str
    """In reports."""
    asked: str = "iwarp"
    """As the server's command has it: what ``make`` makes stands in for that."""
    host: str = "127.0.0.1"
    reads: int = 10_000


LIKE_VERBS = replace(CAPABILITIES, requires_registration=True, regions_invalidatable=False)
FABRICS = {
    "loopback": Fabric(LoopbackProvider, "loopback"),
    "registered": Fabric(lambda: LoopbackProvider(LIKE_VERBS), "loopback"),
    "iwarp": Fabric(IwarpProvider, "iwarp"),
    # Its own UDP port may be taken on this machine; both ends must agree on another.
    "roce": Fabric(lambda: RoceProvider(free_port()), "roce", "roce", reads=2_000),
    # Software devices run in emulated guests.
    "verbs": Fabric(VerbsProvider, "verbs", "iwarp", os.environ.get("VERBS_HOST", "127.0.0.1"), 1_000),
}


WARM_UP = 12
"""Buffers of Sends and Writes that nobody waits for come back in batches: so many rounds until the pool has all."""


@pytest.fixture(params=list(FABRICS))
def fabric(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fabric:
    """One of the fabrics, whose provider the server takes, too."""
    chosen = FABRICS[request.param]
    provider = chosen.make()
    reason = provider.available()
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    monkeypatch.setattr("smb3server.service.listeners.make_provider", lambda name: provider)
    return chosen._replace(make=lambda: provider)


def test_steady_state_costs_nothing(tmp_path: Path, fabric: Fabric) -> None:
    """After warm-up a connection registers and allocates nothing more, and the report has its counters."""
    provider = fabric.make()

    async def scene(acted: Scene) -> None:
        port = acted.service.fabrics.listeners[0][1].address[1]
        client = await Client.connect(await open_rdma(provider, acted.host, port))
        acted.clients.append(client)
        session = await log_on(client)
        for _ in range(WARM_UP):
            await move(client, session)
        (warm,) = acted.report()
        for _ in range(20):
            await move(client, session)
        (steady,) = acted.report()
        for counter in ("registrations", "allocations"):
            assert steady[counter] == warm[counter], counter
        assert steady["fabric"] == fabric.name
        assert steady["rdma_read_bytes"] == steady["rdma_write_bytes"] == (WARM_UP + 20) * SIZE
        assert steady["errors"] == 0
        assert steady["send_credits"] > 0

    play(tmp_path, scene, fabric.asked, fabric.host)


class OpensWatched:
    """Files that this process opened, by the interpreter's audit events and the one system call that has none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.active = False
        self.seen: list[str] = []
        openat2 = syscalls.openat2

        def counted(root: int, path: bytes, *arguments: Any) -> int:
            self._note("openat2", path)
            return openat2(root, path, *arguments)

        monkeypatch.setattr(syscalls, "openat2", counted)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and event in ("open", "os.listdir", "os.scandir"):
            self._note(event, arguments[0])

    def _note(self, event: str, path: object) -> None:
        # The list of interfaces is read again every ten seconds. Tests beside this one look for servers on this machine
        # and ask each for its status, which lists the process's threads.
        if self.active and not str(path).startswith(("/sys/class/net/", "/proc/self/task")):
            self.seen.append(f"{event} {path!r}")


def test_ten_thousand_reads_cost_no_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fabric: Fabric) -> None:
    """What is expensive happens once, on the control path: a READ registers, allocates, looks up and opens nothing."""
    provider = fabric.make()
    watched = OpensWatched(monkeypatch)
    size = 8192

    async def scene(acted: Scene) -> None:
        port = acted.service.fabrics.listeners[0][1].address[1]
        client = await Client.connect(await open_rdma(provider, acted.host, port))
        acted.clients.append(client)
        session = await log_on(client)
        tree = await session.tree_connect("data")
        file = await tree.create("read often", access=0x0012019F, disposition=5)
        assert isinstance(client.transport, SmbDirectTransport)
        content = os.urandom(size)
        areas = [client.transport.rdma.register(memoryview(bytearray(size)), writable=True) for _ in range(32)]
        source = client.transport.rdma.register(memoryview(bytearray(content)), readable=True)
        assert await tree.write_from(file, 0, source.descriptors, size) == size

        async def read(area: Any, times: int) -> None:
            for _ in range(times):
                assert await tree.read_into(file, 0, area.descriptors, size, invalidate=False) == size

        def costs() -> dict[str, int]:
            report = collect(acted.service.server)
            (channel,) = report["channels"]
            found = {name: report["server"][name] for name in ("buffer_allocations", "opens", "path_lookups")}
            found |= {name: channel[name] for name in ("registrations", "allocations")}
            found["provider's allocations"] = channel["provider"].get("allocations", 0)
            found |= {f"client {name}": traffic_of(client)[name] for name in ("registrations", "allocations")}
            return found

        def moved() -> int:
            return int(collect(acted.service.server)["channels"][0]["rdma_write_bytes"])

        # More at a time than afterwards: how many buffers are lent at once depends on how soon the peer acknowledges.
        await asyncio.gather(*(read(area, 20) for area in areas))
        await acted.service.server.interfaces.stop()  # it reads files whenever the machine's interfaces change
        warm, before = costs(), moved()
        assert warm["opens"] > 0 and warm["path_lookups"] > 0 and warm["allocations"] > 0
        watched.active = True
        await asyncio.gather(*(read(area, fabric.reads // 8) for area in areas[:8]))
        watched.active = False
        assert costs() == warm
        assert moved() - before == fabric.reads * size
        assert not watched.seen
        assert all(area.view == content for area in areas)

    play(tmp_path, scene, fabric.asked, fabric.host)


def traffic_of(client: Client) -> dict[str, int]:
    """The transport's own counters at the client's end."""
    assert isinstance(client.transport, SmbDirectTransport)
    return dict(client.transport.counters)


def test_session_encrypted(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await log_on(await acted.rdma(offer=WITHOUT_TRANSFORMS))
        (channel,) = acted.report()
        assert channel["rdma"]["code"] == "encrypted"
        assert "the session is encrypted" in channel["rdma"]["text"]

    play(tmp_path, scene, require_encryption=True)


def test_share_encrypted(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        session = await log_on(await acted.rdma(offer=WITHOUT_TRANSFORMS))
        await session.tree_connect("data")
        (channel,) = acted.report()
        assert channel["rdma"]["code"] == "encrypted"
        assert "share data" in channel["rdma"]["text"]

    play(tmp_path, scene, encrypt_share=True)


def test_signed(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await log_on(await acted.rdma(offer=WITHOUT_TRANSFORMS))
        assert acted.codes() == [Code.SIGNED]

    play(tmp_path, scene, require_signing=True)


def test_inline_dialect(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await log_on(await acted.rdma(dialects=(0x0210,)))
        assert acted.codes() == [Code.DIALECT]

    play(tmp_path, scene)


def test_lost_clients_are_forgotten(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        server = acted.service.server
        for number in range(1000):
            server.rdma_lost(number.to_bytes(16, "little"), "gone")
        assert len(server.lost_rdma) == 256
        assert server.lost_rdma[(999).to_bytes(16, "little")] == "gone"

    play(tmp_path, scene)


@pytest.mark.parametrize("code", Code)
def test_every_reason_is_documented_and_tested(code: Code) -> None:
    assert code in _TEXTS
    documentation = (Path(__file__).parents[3] / "docs" / "rdma-used.md").read_text()
    assert f"`{code.value}`" in documentation
    others = Path(__file__).parents[2] / "rdma_transforms" / "test_status.py"
    source = Path(__file__).read_text() + others.read_text()
    assert f"Code.{code.name}" in source or f'"{code.value}"' in source.split("def test_every_reason")[0]
