"""Programs that nobody here wrote find the server: avahi-browse, and wsdd as a client of WS-Discovery."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.discovery import mdns
from smb3server.discovery.wsd import HTTP_PORT
from smb3server.discovery.wsd_messages import EVERYBODY, PROBE, envelope
from smb3server.discovery.wsd_sockets import PORT
from smb3server.settings.discovery import DiscoveryConfig
from tests.lab.announced import CLIENT, NAME, SERVER, announced, avahi, needs, network, output, running
from tests.lab.announced import wait_for as wait_for_line
from tools.cluster.network import Network

pytestmark = [pytest.mark.interop, pytest.mark.root]
MDNS_ONLY, WSD_ONLY = DiscoveryConfig(ws_discovery=False), DiscoveryConfig(mdns=False)
DNSSD = Path("/usr/libexec/gvfsd-dnssd")
ROUTED = "198.51.100.7"
"""An address behind the client, which the server reaches by a route."""


@pytest.fixture
def lab() -> Iterator[Network]:
    with network() as found:
        yield found


async def browse(lab: Network, bus: Path, *options: str) -> list[list[str]]:
    """Return the services that the client's avahi resolves, as lists of fields."""
    environment = ["env", f"DBUS_SYSTEM_BUS_ADDRESS=unix:path={bus}"]
    text = await output(lab, *environment, "avahi-browse", "-rpt", *options)
    return [line.split(";") for line in text.splitlines() if line.startswith("=")]


async def until_mdns(announcer: object) -> None:
    async with asyncio.timeout(20):
        while not announcer.describe()["mdns"]:  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)


@needs("avahi-daemon", "avahi-browse", "dbus-daemon")
def test_avahi_finds_the_server_and_forgets_it_after_its_goodbye(lab: Network, tmp_path: Path) -> None:
    async def body() -> None:
        async with avahi(lab.prefix(CLIENT), tmp_path / "avahi", "client") as bus:
            async with announced(MDNS_ONLY) as announcer:
                await until_mdns(announcer)
                services = await browse(lab, bus, "_smb._tcp")
                assert {(fields[3], fields[6], fields[8]) for fields in services} == {(NAME, f"{NAME}.local", "445")}
                assert {fields[7] for fields in services} <= {lab.address(SERVER), lab.address6(SERVER)}
                (device, *_) = await browse(lab, bus, "_device-info._tcp")
                assert device[9] == '"model=RackMac"'
                lab.change_address(SERVER, "del", f"{lab.address(SERVER)}/24")
                lab.change_address(SERVER, "add", "10.77.0.99/24")
                async with asyncio.timeout(20):
                    while "10.77.0.99" not in {fields[7] for fields in await browse(lab, bus, "_smb._tcp")}:
                        await asyncio.sleep(0.1)
            async with asyncio.timeout(20):
                while await browse(lab, bus, "_smb._tcp"):
                    await asyncio.sleep(0.1)

    lab.inside(SERVER, body)


@needs("avahi-daemon", "avahi-browse", "dbus-daemon")
def test_an_avahi_of_the_same_machine_keeps_the_host_name(
    lab: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server's addresses announced by both, each would think that the other machine has taken the name."""
    monkeypatch.setattr(mdns, "RESOLVE_TIMEOUT", 3000)

    async def body() -> None:
        async with (
            avahi(lab.prefix(SERVER), tmp_path / "own", NAME),
            avahi(lab.prefix(CLIENT), tmp_path / "avahi", "client") as bus,
            announced(MDNS_ONLY) as announcer,
        ):
            await until_mdns(announcer)
            assert announcer.describe()["mdns_host"] == f"{NAME}.local."
            service = announcer._mdns._services[0]  # type: ignore[union-attr]
            assert service.addresses == []
            services = await browse(lab, bus, "_smb._tcp")
            assert {(fields[3], fields[6]) for fields in services} == {(NAME, f"{NAME}.local")}

    lab.inside(SERVER, body)


@needs("avahi-daemon", "avahi-browse", "dbus-daemon")
def test_avahi_sees_the_shares_for_time_machine(lab: Network, tmp_path: Path) -> None:
    """They come and go with the shares. The icon is that of the model."""

    async def body() -> None:
        shares = ["backups", "caf\u00e9 2", "with, comma"]
        async with (
            avahi(lab.prefix(CLIENT), tmp_path / "avahi", "client") as bus,
            announced(DiscoveryConfig(ws_discovery=False, model="TimeCapsule8,119"), backups=shares) as announcer,
        ):
            await until_mdns(announcer)
            (disks, *_) = await browse(lab, bus, "_adisk._tcp")
            assert (disks[3], disks[6]) == (NAME, f"{NAME}.local")
            texts = {text.strip('"') for text in disks[9].split('" "')}
            assert "sys=waMa=0,adVF=0x100" in texts and "dk0=adVN=backups,adVF=0x82" in texts and len(texts) == 3
            assert "share with, comma is not announced" in announcer.problems[0]
            (device, *_) = await browse(lab, bus, "_device-info._tcp")
            assert device[9] == '"model=TimeCapsule8,119"'
            shares.clear()
            announcer.refresh_soon()
            async with asyncio.timeout(20):
                while await browse(lab, bus, "_adisk._tcp"):
                    await asyncio.sleep(0.1)
            assert await browse(lab, bus, "_smb._tcp")

    lab.inside(SERVER, body)


@needs("avahi-daemon", "dbus-run-session", "gio")
@pytest.mark.skipif(not DNSSD.exists(), reason=f"there is no {DNSSD} (Debian: gvfs-backends)")
def test_nautilus_lists_the_server(lab: Network, tmp_path: Path) -> None:
    """Its network view is that of gvfs."""

    async def body() -> None:
        async with avahi(lab.prefix(CLIENT), tmp_path / "avahi", "client") as bus, announced(MDNS_ONLY) as announcer:
            await until_mdns(announcer)
            environment = ["env", f"DBUS_SYSTEM_BUS_ADDRESS=unix:path={bus}"]
            script = "gio list dns-sd://local; gio list dns-sd://local; gio list network://"
            found = await output(lab, *environment, "dbus-run-session", "--", "sh", "-c", script)
            assert f"{NAME}._smb._tcp" in found

    lab.inside(SERVER, body)


@needs("wsdd")
def test_a_client_of_ws_discovery_finds_the_server(lab: Network, tmp_path: Path) -> None:
    """wsdd probes, asks for the metadata over HTTP, and forgets the server at its Bye."""

    async def body() -> None:
        client = [*lab.prefix(CLIENT), "wsdd", "-D", "-o", "-v", "-4", "-l", str(tmp_path / "wsdd.sock")]
        async with announced(DiscoveryConfig(mdns=False, workgroup="HOME")), running([], *client) as lines:
            await wait_for_line(lines, f"discovered {NAME} in Workgroup:HOME on {lab.address(SERVER)}")

    lab.inside(SERVER, body)


@needs("wsdd")
def test_a_client_that_is_there_first_finds_it_by_hello_over_ipv6(lab: Network, tmp_path: Path) -> None:
    async def body() -> None:
        client = [*lab.prefix(CLIENT), "wsdd", "-D", "-o", "-v", "-6", "-l", str(tmp_path / "wsdd.sock")]
        async with running([], *client) as lines:
            await wait_for_line(lines, "joined multicast group")
            async with announced(WSD_ONLY):
                await wait_for_line(lines, f"discovered {NAME} in Workgroup:WORKGROUP on [fe80")

    lab.inside(SERVER, body)


@needs()
def test_another_program_on_the_port_of_the_metadata_is_named(lab: Network) -> None:
    async def body() -> None:
        with socket.create_server(("", HTTP_PORT)):
            async with announced(WSD_ONLY) as announcer, asyncio.timeout(10):
                while not announcer.problems:
                    await asyncio.sleep(0.05)
            (problem,) = announcer.problems
        assert f"TCP port {HTTP_PORT} belongs to" in problem
        assert "ws_discovery = false" in problem

    lab.inside(SERVER, body)


@needs()
def test_hosts_behind_a_router_get_no_answer(lab: Network) -> None:
    """An answer to a forged address would hit somebody else. Probes of the link are answered, at the same time."""
    message = envelope(PROBE, EVERYBODY, "<wsd:Probe/>")
    answers: dict[str, bytes] = {}

    def ask(source: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, 0))
            sock.settimeout(2.0)
            sock.sendto(message.replace(b"urn:uuid:", f"urn:uuid:{source}".encode(), 1), (lab.address(SERVER), PORT))
            try:
                answers[source] = sock.recv(65536)
            except TimeoutError:
                answers[source] = b""

    async def body() -> None:
        lab.change_address(CLIENT, "add", f"{ROUTED}/32")
        process = await asyncio.create_subprocess_exec(
            *lab.prefix(SERVER), "ip", "route", "add", "default", "via", lab.address(CLIENT)
        )
        assert await process.wait() == 0
        async with announced(WSD_ONLY) as announcer:
            async with asyncio.timeout(10):
                while not announcer.describe()["ws_discovery"]:
                    await asyncio.sleep(0.05)
            for source in (ROUTED, lab.address(CLIENT)):
                await asyncio.to_thread(lab.run, CLIENT, lambda source=source: ask(source))  # type: ignore[misc]

    lab.inside(SERVER, body)
    assert answers[lab.address(CLIENT)]
    assert answers[ROUTED] == b""
