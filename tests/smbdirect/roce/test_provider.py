"""The RoCEv2 provider over real sockets: addresses, privileges, counters, many connections, and tshark as judge."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import Access, Atomic, CloseCause, Read, RemoteSegment, Send, Write
from smbdirect.providers.roce import RoceProvider, batch_calls, icrc, sockets
from tests.lab.providers import Pair, Side, connect
from tools.support.ports import free_port

SO_NO_CHECK, UDP_GRO = 11, 104
RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE


async def connect_two(server: RoceProvider, client: RoceProvider, listen_on: str, connect_to: str) -> Pair:
    """A connected pair of two providers, which share nothing."""
    accepted: asyncio.Future[Side] = asyncio.get_running_loop().create_future()
    tasks: list[asyncio.Task[None]] = []
    buffers: dict[str, list[bytearray]] = {}

    def on_request(request: Any) -> None:
        side = Side(request.prepare())
        buffers["server"] = side.post_receives(32)

        async def accept() -> None:
            await request.accept()
            accepted.set_result(side)

        tasks.append(asyncio.ensure_future(accept()))

    sides: list[Side] = []

    def prepare(endpoint: Any) -> None:
        sides.append(Side(endpoint))
        buffers["client"] = sides[0].post_receives(32)

    listener = await server.listen(listen_on, 0, on_request)
    await client.connect(connect_to, listener.address[1], prepare)
    far = await accepted
    await asyncio.gather(*tasks)
    await listener.close()
    return Pair(client, sides[0], far, buffers["client"], buffers["server"])


async def exercise(pair: Pair, size: int = 100_001) -> None:
    """Send, Write, Read, atomic operations and Send with Invalidate, contents checked."""
    memory = bytearray(size)
    region = pair.client.endpoint.register(memoryview(memory), RIGHTS | Access.REMOTE_ATOMIC)
    pair.client.endpoint.post([Send([b"hello"])])
    await pair.server.receives(1)
    data = os.urandom(size)
    remote = RemoteSegment(region.token, region.address, size)
    back = bytearray(size)
    pair.server.endpoint.post([Write([data], remote), Read([memoryview(back)], remote)])
    await pair.server.sends(2)
    assert memory == back == data
    number = int.from_bytes(data[8:16], sys.byteorder)
    place = RemoteSegment(region.token, region.address + 8, 8)
    found = [bytearray(8), bytearray(8)]
    pair.server.endpoint.post([
        Atomic([memoryview(found[0])], place, compare=number, operand=0x0123456789ABCDEF),
        Atomic([memoryview(found[1])], place, operand=0x1111111111111111),
    ])  # fmt: skip
    await pair.server.sends(4)
    assert found[0] == data[8:16] and int.from_bytes(found[1], sys.byteorder) == 0x0123456789ABCDEF
    assert int.from_bytes(memory[8:16], sys.byteorder) == 0x123456789ABCDF00
    pair.server.endpoint.post([Send([b"done"], invalidate=region.token)])
    (received,) = await pair.client.receives(1)
    assert received.invalidated == region.token and not region.valid


def read_frames(capture: Path) -> list[Any]:
    """What tcpdump wrote so far; it may be in the middle of a frame."""
    try:
        return list(rdpcap(str(capture)))
    except EOFError:
        return []


async def finish(pair: Pair) -> None:
    pair.client.endpoint.disconnect()
    assert (await pair.client.end()).cause is CloseCause.LOCAL
    assert (await pair.server.end()).cause is CloseCause.PEER


@pytest.mark.parametrize(
    ("listen_on", "connect_to"),
    [("127.0.0.2", "127.0.0.2"), ("127.0.0.3", "127.0.0.3")],
)
@pytest.mark.parametrize("raw", [True, False])
def test_two_providers_on_two_addresses(listen_on: str, connect_to: str, raw: bool) -> None:
    async def main() -> None:
        port = free_port()
        pair = await connect_two(RoceProvider(port, raw=raw), RoceProvider(port, raw=raw), listen_on, connect_to)
        assert pair.server.endpoint.local_address[0] == listen_on
        assert pair.server.endpoint.peer_address[0] == "127.0.0.1"
        await exercise(pair)
        await finish(pair)

    asyncio.run(main())


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(("everywhere", "host"), [("0.0.0.0", "127.0.0.5"), ("::", "::1")])
def test_listening_on_all_addresses(everywhere: str, host: str, raw: bool) -> None:
    """Answers leave from the address that was asked."""

    async def main() -> None:
        provider = RoceProvider(free_port(), raw=raw)
        pair = await connect_two(provider, provider, everywhere, host)
        assert pair.server.endpoint.local_address[0] == host
        await exercise(pair)
        await finish(pair)

    asyncio.run(main())


def test_a_port_that_is_taken_is_named_with_the_remedy() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as owner:
            owner.bind(("127.0.0.1", 0))
            with pytest.raises(ProviderError, match=r"rdma_rxe owns it .* stop it"):
                await RoceProvider(owner.getsockname()[1]).listen("127.0.0.1", 5445, lambda request: None)

    asyncio.run(main())


def test_without_the_capability_it_serves_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_raw(family: int = -1, kind: int = -1, *rest: Any) -> socket.socket:
        if kind != -1 and kind & 0xF == socket.SOCK_RAW:
            raise PermissionError(1, "Operation not permitted")
        return real(family, kind, *rest)

    monkeypatch.setattr(sockets.socket, "socket", without_raw)

    async def main() -> None:
        provider = RoceProvider(free_port())
        pair = await connect_two(provider, provider, "127.0.0.1", "127.0.0.1")
        other = await connect_two(provider, provider, "127.0.0.2", "127.0.0.2")
        assert len(provider.notices) == 1 and "CAP_NET_RAW" in provider.notices[0]
        for each in (pair, other):
            await exercise(each)
            await finish(each)

    asyncio.run(main())


def in_python(monkeypatch: pytest.MonkeyPatch, kind: type[socket.socket]) -> None:
    """Have the methods of ``kind`` see all that is sent and received."""
    monkeypatch.setattr(sockets.socket, "socket", kind)
    monkeypatch.setattr(sockets, "take", batch_calls.take)
    monkeypatch.setattr(sockets, "launch", batch_calls.launch)


class Refusing(socket.socket):
    """A socket of a kernel, or of an interface, that has neither UDP_SEGMENT nor UDP_GRO."""

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.IPPROTO_UDP, UDP_GRO):
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        super().setsockopt(level, option, *value)

    def sendmsg(self, buffers: Any, control: Any = (), *rest: Any) -> int:
        if any(kind == batch_calls.UDP_SEGMENT for _, kind, _ in control):
            raise OSError(errno.EIO, "Input/output error")
        return super().sendmsg(buffers, control, *rest)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("raw", [True, False])
def test_without_batches(monkeypatch: pytest.MonkeyPatch, host: str, raw: bool) -> None:
    """The first batch is lost, and the packets are sent again, one by one."""
    in_python(monkeypatch, Refusing)

    async def main() -> None:
        provider = RoceProvider(free_port(), raw=raw)
        pair = await connect_two(provider, provider, host, host)
        await exercise(pair, 300_001)
        (port,) = provider._ports.values()
        assert port.counters == {"send_errors": 1, "crc_errors": 0, "malformed": 0}
        assert not port.segmentation
        await finish(pair)

    asyncio.run(main())


class RefusedByLinux(socket.socket):
    """A socket for which Linux itself refuses UDP_SEGMENT, since it sends no UDP checksums, and which has no UDP_GRO
    either."""

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.IPPROTO_UDP, UDP_GRO):
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        super().setsockopt(level, option, *value)

    def bind(self, address: Any) -> None:
        if self.type & socket.SOCK_DGRAM:
            self.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        super().bind(address)


@pytest.mark.parametrize("raw", [True, False])
def test_linux_refuses_batches(monkeypatch: pytest.MonkeyPatch, raw: bool) -> None:
    monkeypatch.setattr(sockets.socket, "socket", RefusedByLinux)

    async def main() -> None:
        provider = RoceProvider(free_port(), raw=raw)
        pair = await connect_two(provider, provider, "127.0.0.1", "127.0.0.1")
        await exercise(pair, 300_001)
        (port,) = provider._ports.values()
        assert port.counters == {"send_errors": 1, "crc_errors": 0, "malformed": 0}
        assert not port.segmentation
        await finish(pair)

    asyncio.run(main())


class Busy(socket.socket):
    """A socket of a machine on which datagrams to other ports come all the time."""

    def __init__(self, family: int = -1, kind: int = -1, *rest: Any) -> None:
        super().__init__(family, kind, *rest)
        if kind != -1 and kind & 0xF == socket.SOCK_RAW:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                other.bind(("127.0.0.1", 0))
                for _ in range(3):
                    other.sendto(b"strange", other.getsockname())


def test_what_comes_to_other_ports_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets.socket, "socket", Busy)

    async def main() -> None:
        provider = RoceProvider(free_port())
        pair = await connect_two(provider, provider, "127.0.0.1", "127.0.0.1")
        await exercise(pair)
        (port,) = provider._ports.values()
        assert not any(port.counters.values())
        await finish(pair)

    asyncio.run(main())


class LikeDevices(socket.socket):
    """A socket that sends no UDP checksums."""

    def bind(self, address: Any) -> None:
        if self.type & socket.SOCK_DGRAM:
            self.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        super().bind(address)


@pytest.mark.parametrize("raw", [True, False])
def test_packets_like_those_of_devices(monkeypatch: pytest.MonkeyPatch, raw: bool) -> None:
    """One by one, and without UDP checksums."""
    monkeypatch.setattr(sockets.socket, "socket", LikeDevices)

    async def main() -> None:
        provider = RoceProvider(free_port(), raw=raw, segmentation=False)
        pair = await connect_two(provider, provider, "127.0.0.1", "127.0.0.1")
        await exercise(pair, 1_000_001)
        (port,) = provider._ports.values()
        assert not any(port.counters.values())
        for side in (pair.client, pair.server):
            assert not side.endpoint.counters["malformed"]
        await finish(pair)

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("raw", [True, False])
def test_few_system_calls_for_many_packets(monkeypatch: pytest.MonkeyPatch, host: str, raw: bool) -> None:
    """128 packets of 4 KiB in batches of up to 64 KiB, which arrive whole."""
    calls: Counter[str] = Counter()

    class Counting(socket.socket):
        def sendmsg(self, *arguments: Any) -> int:
            calls["sendmsg"] += 1
            return super().sendmsg(*arguments)

        def recvmsg_into(self, *arguments: Any) -> Any:
            received = super().recvmsg_into(*arguments)
            calls["recvmsg_into"] += 1
            return received

    in_python(monkeypatch, Counting)

    async def main() -> None:
        size = 128 * 4096
        provider = RoceProvider(free_port(), raw=raw)
        pair = await connect_two(provider, provider, host, host)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        memory = bytearray(size)
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        remote = RemoteSegment(region.token, region.address, size)
        window = pair.server.endpoint.queue_pair.requester.window  # type: ignore[attr-defined]
        window.size = window.limit
        requests = Write([os.urandom(size)], remote), Read([memoryview(bytearray(size))], remote)
        for number, request in enumerate(requests):
            calls.clear()
            pair.server.endpoint.post([request])
            await pair.server.sends(number + 1)
            # 10 or 11 batches, and an acknowledgement or a request.
            assert calls["sendmsg"] <= 12
            assert calls["recvmsg_into"] <= 12
        await finish(pair)

    asyncio.run(main())


def test_a_full_socket_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a receiver has no room for is sent again."""
    monkeypatch.setattr(sockets, "RECEIVE_BUFFER", 1 << 17)

    async def main() -> None:
        port = free_port()
        pair = await connect_two(RoceProvider(port), RoceProvider(port), "127.0.0.2", "127.0.0.2")
        await exercise(pair, 2_000_001)
        counters = [side.endpoint.counters for side in (pair.client, pair.server)]
        assert sum(each["retransmissions"] for each in counters) > 0
        assert not any(each["crc_errors"] + each["malformed"] for each in counters)
        await finish(pair)

    asyncio.run(main())


def test_path_mtu_is_the_smaller_of_both() -> None:
    async def main() -> None:
        port = free_port()
        pair = await connect_two(RoceProvider(port), RoceProvider(port, max_mtu=512), "127.0.0.2", "127.0.0.2")
        assert pair.server.endpoint.queue_pair.requester.mtu == 512  # type: ignore[attr-defined]
        await exercise(pair)
        await finish(pair)

    asyncio.run(main())


def test_counters_after_warm_up() -> None:
    async def main() -> None:
        pair = await connect(RoceProvider(free_port()), "127.0.0.1", receives=32)
        memory = bytearray(8192)
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        remote = RemoteSegment(region.token, region.address, 8192)
        local = memoryview(bytearray(8192))
        before = [dict(side.endpoint.counters) for side in (pair.client, pair.server)]
        for count in range(1, 51):
            pair.server.endpoint.post([Write([local], remote), Read([local], remote)])
            await pair.server.sends(2 * count)
        after = [dict(side.endpoint.counters) for side in (pair.client, pair.server)]
        for first, last in zip(before, after, strict=True):
            for name in ("registrations", "allocations", "retransmissions", "crc_errors", "malformed", "naks_sent"):
                assert last[name] == first[name], name
        client, server = after
        assert server["bytes_written"] == server["bytes_read"] == 50 * 8192
        assert client["bytes_placed"] == client["bytes_served"] == 50 * 8192
        assert (server["writes"], server["reads"]) == (50, 50)
        pair.client.endpoint.abort()
        pair.server.endpoint.abort()
        await pair.client.end()
        await pair.server.end()

    asyncio.run(main())


@pytest.mark.parametrize("raw", [True, False])
def test_a_congestion_mark_is_reported(raw: bool) -> None:
    async def main() -> None:
        pair = await connect(RoceProvider(free_port(), raw=raw), "127.0.0.1", receives=32)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        port = pair.client.endpoint.path._port  # type: ignore[attr-defined]
        port.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 3)
        pair.client.endpoint.post([Send([b"marked"])])
        await pair.server.receives(2)
        port.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
        async with asyncio.timeout(5):
            while not pair.client.endpoint.counters["cnp_received"]:
                await asyncio.sleep(0.001)
        assert pair.server.endpoint.counters["ecn_marks"] > 0
        pair.client.endpoint.abort()
        pair.server.endpoint.abort()
        await pair.client.end()
        await pair.server.end()

    asyncio.run(main())


def test_many_connections_leave_nothing_behind() -> None:
    async def main() -> None:
        provider = RoceProvider(free_port())
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            pair = await connect(provider, "127.0.0.1", receives=2)
            pair.client.endpoint.disconnect()
            await pair.client.end()
            await pair.server.end()
        async with asyncio.timeout(5):
            while provider._ports:
                await asyncio.sleep(0.001)
        assert not provider.endpoints and not provider._connections and not len(provider._manager)
        assert provider._timer is None
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == descriptors

    asyncio.run(main())


def test_a_silent_peer_times_out() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.2", 0))
            provider = RoceProvider(silent.getsockname()[1])
            with pytest.raises(ConnectionLost) as caught:
                await provider.connect("127.0.0.2", 5445, lambda endpoint: None, timeout=0.3)
            assert caught.value.reason.cause is CloseCause.TIMEOUT  # type: ignore[attr-defined]
            assert not provider.endpoints

    asyncio.run(main())


@pytest.mark.interop
@pytest.mark.root
@pytest.mark.skipif(not shutil.which("tcpdump"), reason="tcpdump is not installed")
@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="capturing needs root")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_tshark_and_the_icrc_of_every_packet(tmp_path: Path, host: str) -> None:
    capture = tmp_path / "roce.pcap"
    port = free_port()

    async def main() -> int:
        provider = RoceProvider(port, max_mtu=1024, segmentation=False)
        pair = await connect_two(provider, provider, host, host)
        await exercise(pair)
        await finish(pair)
        return sum(side.endpoint.counters["packets_sent"] for side in (pair.client, pair.server))

    command = ["tcpdump", "-i", "lo", "-s", "2048", "-B", "16384", "-U", "--immediate-mode", "-w", str(capture)]
    dump = subprocess.Popen([*command, f"udp port {port}"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not (capture.exists() and capture.stat().st_size >= 24):
            assert time.monotonic() < deadline, "tcpdump does not start"
            time.sleep(0.005)
        sent = asyncio.run(main())
        while len(read_frames(capture)) < sent + 5 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        dump.terminate()
        dump.wait()
    arguments = ["tshark", "-n", "-r", str(capture), "-d", f"udp.port=={port},infiniband", "-T", "fields"]
    for protocol in ("artemis", "rpcordma", "iser", "smb_direct"):
        arguments += ["--disable-protocol", protocol]
    fields = ("bth.opcode", "invariant.crc", "atomiceth.swapdt", "atomicacketh.origremdt")
    for field in (*(f"infiniband.{name}" for name in fields), "_ws.malformed"):
        arguments += ["-e", field]
    lines = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    rows = [line.split("\t") for line in lines]
    assert len(rows) == sent + 5, "REQ, REP, RTU, DREQ, DREP"
    assert all(opcode and not malformed for opcode, _, _, _, malformed in rows)
    changes = [(int(operand or "0", 0), int(found or "0", 0)) for _, _, operand, found, _ in rows if operand or found]
    assert [operand for operand, _ in changes if operand] == [0x0123456789ABCDEF, 0x1111111111111111]
    assert [found for operand, found in changes if not operand][1:] == [0x0123456789ABCDEF]
    if host == "::1":
        return
    for frame in rdpcap(str(capture)):
        packet = bytes(frame[IP])
        assert UDP in frame
        assert packet[4:8] == b"\0\0\x40\0", "ID 0, DF"
        buffer = bytearray(icrc.ONES) + packet
        assert icrc.check_ipv4(buffer, memoryview(buffer), 0, len(buffer))


def test_the_port_is_free_for_the_next_event_loop() -> None:
    """A loop that ends before the peer has answered the end of the connection leaves its sockets to the garbage
    collector. The same program connects again before that comes."""
    port = free_port()
    held = []

    async def once() -> None:
        server, client = RoceProvider(udp_port=port), RoceProvider(udp_port=port)
        held.append(await connect_two(server, client, "127.0.0.2", "127.0.0.2"))

    for _ in range(3):
        asyncio.run(once())
