"""Fabrics of a running server: several by name, errors for those that cannot serve, the choice printed."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, open_rdma
from smb3server.client.protocol.interfaces import query_interfaces
from smb3server.net.host import ROCE_UDP_PORT
from smb3server.server.server import Server
from smb3server.service.listeners import Fabrics
from smb3server.service.reception import Reception
from smb3server.settings.server import Settings
from smb3server.status.rdma_reasons import Code
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.iwarp import mpa
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.providers.verbs.device import why_unavailable
from tests.lab.reports import collect
from tests.lab.scene import Scene, log_on, play

ADDRESS = "127.44.55.67"
"""A local address of this test alone: RoCEv2's UDP port is the same for everybody."""


def test_several_fabrics(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        fabrics = acted.service.fabrics
        assert [name for name, _ in fabrics.listeners] == ["iwarp", "roce"]
        assert [choice.reason.split(";")[0] for choice in fabrics.choices] == ["asked for", "asked for"]
        assert acted.service.server.rdma_addresses == {ADDRESS}

    play(tmp_path, scene, "iwarp,roce", ADDRESS)


def test_auto_serves_the_rest_and_says_why(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        fabrics = acted.service.fabrics
        assert [name for name, _ in fabrics.listeners] == ["iwarp"]
        (problem,) = [text for text in fabrics.problems if text.startswith("roce")]
        assert f"UDP port {ROCE_UDP_PORT} belongs to" in problem
        assert f"(process {os.getpid()})" in problem
        assert "remedy: stop it" in problem

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((ADDRESS, ROCE_UDP_PORT))
        play(tmp_path, scene, "auto", ADDRESS)


async def never(acted: Scene) -> None:
    raise AssertionError("the server must not start")


def test_named_fabric_with_a_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProviderError, match=rf"iwarp not served on {ADDRESS}: TCP port {port} belongs to .*remedy"):
            play(tmp_path, never, "iwarp", ADDRESS, rdma_port=port)


@pytest.mark.skipif(why_unavailable() is None, reason="this machine has an RDMA device")
def test_named_fabric_without_its_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=r"verbs not served: no RDMA device .*rdma link add"):
        play(tmp_path, never, "iwarp,verbs", ADDRESS)


def test_a_port_that_goes_down_is_withdrawn_until_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections end with the reason, clients are no longer told of it, and the report says why."""
    provider = LoopbackProvider()
    monkeypatch.setattr("smb3server.service.listeners.make_provider", lambda name: provider)

    async def scene(acted: Scene) -> None:
        server, fabrics = acted.service.server, acted.service.fabrics
        port = fabrics.listeners[0][1].address[1]
        tree = await (await log_on(await acted.tcp())).tree_connect("IPC$")

        async def flagged() -> bool:
            return any(entry.rdma for entry in await query_interfaces(tree))

        async def connect() -> Client:
            client = await Client.connect(await open_rdma(provider, acted.host, port))
            acted.clients.append(client)
            return client

        assert await flagged()
        client = await connect()
        await log_on(client)
        guid = next(c.client_guid for c in server.connection_list if c.transport.rdma is not None)
        provider.listeners[port].port_down("port 1 of mlx5_0 is down")
        await acted.until(Code.NO_PROVIDER)
        assert server.lost_rdma[guid].endswith("port 1 of mlx5_0 is down")
        (channel,) = acted.report()
        assert "port 1 of mlx5_0 is down" in channel["rdma"]["text"]
        (choice,) = collect(server)["server"]["rdma_choices"]
        assert (choice["served"], choice["reason"], choice["ports"]) == (False, "port 1 of mlx5_0 is down", [])
        assert "rdma link" in choice["remedy"]
        assert not await flagged()
        with pytest.raises(ConnectionLost):
            await connect()
        provider.listeners[port].port_up()
        assert await flagged()
        (choice,) = collect(server)["server"]["rdma_choices"]
        assert choice["served"] and choice["ports"] == [port]
        await log_on(await connect())
        await acted.until(Code.NOT_OPENED, Code.NO_TRANSFERS)

    play(tmp_path, scene, "iwarp")


@pytest.mark.parametrize("wanted", [False, True])
def test_iwarp_asks_for_checksums_where_that_is_configured(tmp_path: Path, wanted: bool) -> None:
    """RFC 5044 section 7.1.1: the CRC is used if either side asks for it."""

    async def main() -> None:
        settings = Settings(iwarp_crc=wanted)
        server = Server(settings)
        reception = Reception(
            server.accept, settings.hosts.admits, server.buffers, server.silent_peers, server.unauthenticated
        )
        fabrics = Fabrics(settings, reception, lambda: server.interfaces.interfaces)
        await fabrics.start(("iwarp",), ("127.0.0.1",), 0)
        assert fabrics.addresses == {"127.0.0.1"}
        port = fabrics.listeners[0][1].address[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(mpa.encode_frame(mpa.REQUEST_KEY, mpa.request_frame(b"", crc=False)))
        header = mpa.decode_header(await reader.readexactly(mpa.FRAME_HEADER.size), mpa.REPLY_KEY)
        assert bool(header.flags & mpa.FrameFlag.CRC) is wanted
        writer.close()
        await fabrics.close()
        await server.shutdown(1)

    asyncio.run(main())
