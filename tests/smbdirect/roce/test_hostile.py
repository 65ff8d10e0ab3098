"""Hostile packets against RoCEv2 connections over real sockets, built by scapy, which also computes their ICRC."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from smbdirect.providers.base import Access, CloseCause, Operation, Send, Status
from smbdirect.providers.roce import RoceProvider
from smbdirect.providers.roce.cm import MAX_PENDING_PER_PEER
from smbdirect.providers.roce.cm_messages import CMA, REQ, Attribute, CmaHeader, Req, mad_bytes
from smbdirect.providers.roce.headers import AETH, DETH, IETH, RETH, Aeth, Deth, Ieth, Opcode, Reth
from tests.lab.providers import Pair, Side, connect
from tools.support.ports import free_port

HOST = "127.0.0.1"
UDP_SEGMENT = 103
MTU = 4096
RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE


class Attacker:
    """Sends what it likes from the peer's address, but another port; hears what comes back."""

    def __init__(self, udp_port: int, source: str = HOST) -> None:
        self.udp_port = udp_port
        self.source = source
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: DF, and ID 0
        self.socket.bind((source, 0))
        self.socket.setblocking(False)

    def packet(
        self, number: int, opcode: int, psn: int, body: bytes = b"", damage: int = 0, ip_id: int = 0, **fields: Any
    ) -> bytes:
        """``body`` is everything between BTH and ICRC; ``damage`` is xored to the ICRC's last byte."""
        packet = (
            IP(src=self.source, dst=HOST, id=ip_id, flags="DF")
            / UDP(sport=self.socket.getsockname()[1], dport=self.udp_port)
            / BTH(opcode=opcode, dqpn=number, psn=psn & 0xFFFFFF, pkey=0xFFFF, **fields)
            / Raw(body)
        )
        data = bytearray(bytes(packet)[28:])
        data[-1] ^= damage
        return bytes(data)

    def send(self, *arguments: Any, **fields: Any) -> None:
        """Send what ``packet`` returns."""
        self.socket.sendto(self.packet(*arguments, **fields), (HOST, self.udp_port))

    def send_batch(self, packets: list[bytes]) -> None:
        """Send packets of one length by one call."""
        segment = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(packets[0])))
        self.socket.sendmsg(packets, [segment], 0, (HOST, self.udp_port))

    def mad(self, mad: bytes, number: int = 1, queue_key: int = 0x80010000, source: int = 1) -> None:
        self.send(number, Opcode.UD_SEND_ONLY, 0, DETH.pack(Deth(queue_key, source)) + mad)

    def heard(self) -> bool:
        try:
            self.socket.recv(65536)
        except BlockingIOError:
            return False
        return True


class Scene:
    """A connected pair, the victim being its server, and what an attacker who sees everything knows."""

    def __init__(self, pair: Pair, provider: RoceProvider, attacker: Attacker) -> None:
        self.pair = pair
        self.provider = provider
        self.attacker = attacker
        self.memory = bytearray(b"\xee" * 20_000)
        self.victim: Side = pair.server
        self.queue_pair = self.victim.endpoint.queue_pair  # type: ignore[attr-defined]
        self.region = self.victim.endpoint.register(memoryview(self.memory)[4096:12288], RIGHTS)

    @property
    def number(self) -> int:
        return int(self.queue_pair.number)

    @property
    def psn(self) -> int:
        return int(self.queue_pair.responder._expected)

    def reth(self, length: int, offset: int = 0, token: int | None = None) -> bytes:
        address = (self.region.address + offset) & 0xFFFFFFFFFFFFFFFF
        return RETH.pack(Reth(address, self.region.token if token is None else token, length))

    async def settle(self) -> None:
        """Everything sent so far was looked at: a message of the client's came through after it, or the end did."""
        count = len(self.victim.of(Operation.RECEIVE))
        self.pair.client.endpoint.post([Send([b"sync"])])
        await self.victim.until(lambda: len(self.victim.of(Operation.RECEIVE)) > count or self.victim.closed)

    @property
    def untouched(self) -> bool:
        return self.memory == b"\xee" * 20_000


def run(scenario: Callable[[Scene], Awaitable[None]], source: str = HOST, raw: bool = True) -> None:
    async def main() -> None:
        port = free_port()
        provider = RoceProvider(port, raw=raw)
        pair = await connect(provider, HOST, receives=64)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        attacker = Attacker(port, source)
        try:
            await scenario(Scene(pair, provider, attacker))
        finally:
            attacker.socket.close()
            for side in (pair.client, pair.server):
                side.endpoint.abort()
                await side.end()

    asyncio.run(main())


def test_a_well_made_packet_is_obeyed() -> None:
    """So that the refusals below have the reason that they name."""

    async def scenario(scene: Scene) -> None:
        scene.attacker.send(scene.number, Opcode.WRITE_ONLY, scene.psn, scene.reth(8) + b"12345678", ackreq=1)
        while scene.untouched:
            await asyncio.sleep(0.001)
        assert scene.memory[4096:4104] == b"12345678"

    run(scenario)


def test_wrong_icrc() -> None:
    async def scenario(scene: Scene) -> None:
        scene.attacker.send(scene.number, Opcode.WRITE_ONLY, scene.psn, scene.reth(8) + bytes(8), damage=1)
        await scene.settle()
        assert scene.untouched
        assert scene.victim.endpoint.counters["crc_errors"] == 1
        assert not scene.victim.closed

    run(scenario)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="sending IP headers needs root")
@pytest.mark.parametrize(
    ("raw", "checksum", "covered", "obeyed"),
    [
        (True, 0, 7777, True),
        (True, 0, 7778, False),  # as devices send: the identification is seen, so it counts
        (True, None, 7777, True),
        (True, None, 7778, True),  # as user space sends: it is not seen, but the UDP checksum is right
        (False, 0, 7777, True),
        (False, 0, 7778, True),
        (False, None, 7777, True),
        (True, 0, None, False),
        (True, None, None, False),
        (False, 0, None, False),
    ],
)
def test_the_identification_that_the_icrc_covers(
    raw: bool, checksum: int | None, covered: int | None, obeyed: bool
) -> None:
    """``covered`` is the identification in the ICRC of a packet that has 7777; with None, the ICRC is damaged."""

    async def scenario(scene: Scene) -> None:
        fields = {"opcode": Opcode.WRITE_ONLY, "dqpn": scene.number, "psn": scene.psn, "pkey": 0xFFFF, "ackreq": 1}
        udp = UDP(sport=4000, dport=scene.attacker.udp_port, chksum=checksum)
        transport = udp / BTH(**fields) / Raw(scene.reth(8) + b"12345678")
        built = bytes(IP(src=HOST, dst=HOST, id=covered or 7777, flags="DF") / transport)
        data = built[28:] if covered else built[28:-1] + bytes([built[-1] ^ 0x40])
        whole = bytes(IP(src=HOST, dst=HOST, id=7777, flags="DF") / udp / Raw(data))
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
            sender.sendto(whole, (HOST, 0))
        errors = scene.victim.endpoint.counters
        async with asyncio.timeout(5):
            while scene.untouched and not errors["crc_errors"]:
                await asyncio.sleep(0.001)
        assert scene.untouched is not obeyed
        assert errors["crc_errors"] == (not obeyed)

    run(scenario, raw=raw)


def test_unknown_queue_pairs_get_no_service() -> None:
    async def scenario(scene: Scene) -> None:
        for number in (0, 2, scene.number ^ 1, 0xFFFFFF):
            scene.attacker.send(number, Opcode.WRITE_ONLY, scene.psn, scene.reth(8) + bytes(8), ackreq=1)
        await scene.settle()
        assert scene.untouched
        assert scene.provider.counters["unknown_queue_pair"] == 4
        assert not scene.attacker.heard()

    run(scenario)


def test_batches_for_unknown_queue_pairs_get_no_service() -> None:
    async def scenario(scene: Scene) -> None:
        packet = scene.attacker.packet
        strange = scene.number ^ 1
        scene.attacker.send_batch(
            [packet(strange, Opcode.WRITE_MIDDLE, scene.psn + index, bytes(MTU), ip_id=index) for index in range(5)]
        )
        await scene.settle()
        assert scene.untouched
        assert scene.provider.counters["unknown_queue_pair"] == 5

    run(scenario)


def test_a_batch_may_not_grow_beyond_what_was_announced() -> None:
    """Nor may a damaged packet in it be placed."""

    async def scenario(scene: Scene) -> None:
        psn, attacker = scene.psn, scene.attacker
        attacker.send(scene.number, Opcode.WRITE_FIRST, psn, scene.reth(8192) + b"a" * MTU)
        middle = (scene.number, Opcode.WRITE_MIDDLE)
        damaged = [attacker.packet(*middle, psn + 1 + index, b"b" * MTU, 1, ip_id=index) for index in range(2)]
        attacker.send_batch(damaged)
        async with asyncio.timeout(5):
            while scene.victim.endpoint.counters["crc_errors"] < 2:
                await asyncio.sleep(0.001)
        assert scene.memory == b"\xee" * 4096 + b"a" * 4096 + b"\xee" * (20_000 - 8192)
        attacker.send_batch([attacker.packet(*middle, psn + 1 + index, b"c" * MTU, ip_id=index) for index in range(3)])
        assert (await scene.victim.end()).cause is CloseCause.PROTOCOL
        assert scene.memory == b"\xee" * 4096 + b"a" * 4096 + b"\xee" * (20_000 - 8192)

    run(scenario)


def test_packets_from_another_address_get_no_service() -> None:
    async def scenario(scene: Scene) -> None:
        scene.attacker.send(scene.number, Opcode.WRITE_ONLY, scene.psn, scene.reth(8) + bytes(8), ackreq=1)
        await scene.settle()
        assert scene.untouched
        assert not scene.attacker.heard()
        assert not scene.victim.closed

    run(scenario, source="127.0.0.9")


@pytest.mark.parametrize("distance", [129, 200, 0x7FFFFF, 0x800000, -1, -2, -1000])
@pytest.mark.parametrize("opcode", [Opcode.WRITE_ONLY, Opcode.READ_REQUEST, Opcode.SEND_ONLY, Opcode.ACKNOWLEDGE])
def test_sequence_numbers_that_are_not_due(opcode: Opcode, distance: int) -> None:
    async def scenario(scene: Scene) -> None:
        body = {Opcode.SEND_ONLY: b"fake", Opcode.READ_REQUEST: scene.reth(8)}.get(opcode, scene.reth(8) + bytes(8))
        if opcode == Opcode.ACKNOWLEDGE:
            body = AETH.pack(Aeth(0x1F << 24))
        psn = scene.psn + distance
        scene.attacker.send(scene.number, opcode, psn, body, ackreq=1)
        await scene.settle()
        assert scene.untouched
        assert all(bytes(buffer[:4]) != b"fake" for buffer in scene.pair.server_receives[:1])

    run(scenario)


BAD_REQUESTS: dict[str, tuple[int, Callable[[Scene], bytes], CloseCause]] = {
    "write-token": (
        Opcode.WRITE_ONLY,
        lambda s: s.reth(8, token=s.region.token ^ 1) + bytes(8),
        CloseCause.REMOTE_ACCESS,
    ),
    "write-before": (Opcode.WRITE_ONLY, lambda s: s.reth(8, -1) + bytes(8), CloseCause.REMOTE_ACCESS),
    "write-behind": (Opcode.WRITE_ONLY, lambda s: s.reth(8, 8185) + bytes(8), CloseCause.REMOTE_ACCESS),
    "write-huge": (Opcode.WRITE_FIRST, lambda s: s.reth(0xFFFFFFFF) + bytes(MTU), CloseCause.REMOTE_ACCESS),
    "write-wraps": (
        Opcode.WRITE_FIRST,
        lambda s: s.reth(8192, -s.region.address - 4096) + bytes(MTU),
        CloseCause.REMOTE_ACCESS,
    ),
    "write-says-less": (Opcode.WRITE_ONLY, lambda s: s.reth(4) + bytes(8), CloseCause.PROTOCOL),
    "write-says-more": (Opcode.WRITE_ONLY, lambda s: s.reth(12) + bytes(8), CloseCause.PROTOCOL),
    "write-nothing": (Opcode.WRITE_ONLY, lambda s: s.reth(0) + bytes(8), CloseCause.PROTOCOL),
    "write-first-short": (Opcode.WRITE_FIRST, lambda s: s.reth(8000) + bytes(100), CloseCause.PROTOCOL),
    "write-first-only": (Opcode.WRITE_FIRST, lambda s: s.reth(MTU) + bytes(MTU), CloseCause.PROTOCOL),
    "write-middle": (Opcode.WRITE_MIDDLE, lambda s: bytes(MTU), CloseCause.PROTOCOL),
    "write-last": (Opcode.WRITE_LAST, lambda s: bytes(8), CloseCause.PROTOCOL),
    "write-immediate": (Opcode.WRITE_ONLY_IMMEDIATE, lambda s: s.reth(8) + bytes(12), CloseCause.PROTOCOL),
    "send-last": (Opcode.SEND_LAST, lambda s: bytes(8), CloseCause.PROTOCOL),
    "send-first-short": (Opcode.SEND_FIRST, lambda s: bytes(100), CloseCause.PROTOCOL),
    "send-too-long": (Opcode.SEND_ONLY, lambda s: bytes(2052), CloseCause.PROTOCOL),
    "send-immediate": (Opcode.SEND_ONLY_IMMEDIATE, lambda s: bytes(12), CloseCause.PROTOCOL),
    "send-invalidate": (
        Opcode.SEND_ONLY_INVALIDATE,
        lambda s: IETH.pack(Ieth(s.region.token ^ 1)),
        CloseCause.REMOTE_ACCESS,
    ),
    "read-token": (Opcode.READ_REQUEST, lambda s: s.reth(8, token=1), CloseCause.REMOTE_ACCESS),
    "read-range": (Opcode.READ_REQUEST, lambda s: s.reth(8193), CloseCause.REMOTE_ACCESS),
    "read-payload": (Opcode.READ_REQUEST, lambda s: s.reth(8) + bytes(4), CloseCause.PROTOCOL),
    "atomic-right": (Opcode.FETCH_ADD, lambda s: s.reth(8)[:12] + b"\1" * 16, CloseCause.REMOTE_ACCESS),
    "atomic-range": (Opcode.COMPARE_SWAP, lambda s: s.reth(8, 8192)[:12] + b"\xee" * 16, CloseCause.REMOTE_ACCESS),
    "atomic-token": (Opcode.FETCH_ADD, lambda s: s.reth(8, token=1)[:12] + b"\1" * 16, CloseCause.REMOTE_ACCESS),
    "atomic-alignment": (Opcode.COMPARE_SWAP, lambda s: s.reth(8, 4)[:12] + b"\xee" * 16, CloseCause.PROTOCOL),
    "atomic-payload": (Opcode.FETCH_ADD, lambda s: s.reth(8)[:12] + b"\1" * 20, CloseCause.PROTOCOL),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_end_the_connection_and_place_nothing(name: str) -> None:
    opcode, body, cause = BAD_REQUESTS[name]

    async def scenario(scene: Scene) -> None:
        scene.attacker.send(scene.number, opcode, scene.psn, body(scene), ackreq=1)
        assert (await scene.victim.end()).cause is cause
        assert scene.memory[:4096] == b"\xee" * 4096
        assert scene.memory[12288:] == b"\xee" * (20_000 - 12288)
        if name != "write-first-only":
            assert scene.untouched
        assert not scene.region.valid
        assert all(c.status != Status.OK for c in scene.victim.of(Operation.RECEIVE)[1:])

    run(scenario)


def test_a_write_may_not_grow_beyond_what_it_announced() -> None:
    async def scenario(scene: Scene) -> None:
        psn = scene.psn
        scene.attacker.send(scene.number, Opcode.WRITE_FIRST, psn, scene.reth(8192) + b"a" * MTU)
        scene.attacker.send(scene.number, Opcode.WRITE_MIDDLE, psn + 1, b"b" * MTU)
        scene.attacker.send(scene.number, Opcode.WRITE_MIDDLE, psn + 2, b"c" * MTU)
        assert (await scene.victim.end()).cause is CloseCause.PROTOCOL
        assert scene.memory == b"\xee" * 4096 + b"a" * 4096 + b"\xee" * (20_000 - 8192)

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_every_opcode_with_anything_behind_it(seed: int) -> None:
    """Never a crash, and nothing outside the region, whatever comes."""
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def scenario(scene: Scene) -> None:
        for _ in range(600):
            opcode = rng.choice([*Opcode, rng.randrange(256)])
            psn = scene.psn + rng.choice([0, 0, 0, 1, -1, rng.randrange(1 << 24)])
            body = rng.choice([b"", scene.reth(rng.randrange(9000), rng.randrange(-10, 9000))]) + rng.randbytes(
                rng.choice([0, 1, 3, 4, 8, 100, MTU])
            )
            fields = {"padcount": rng.randrange(4), "version": rng.choice([0, 0, 0, 1])}
            number = rng.choice([scene.number, scene.number, 1])
            scene.attacker.send(number, opcode, psn, body, ackreq=rng.randrange(2), **fields)
            await asyncio.sleep(0)
            if scene.victim.closed:
                break
        await scene.settle()
        assert scene.memory[:4096] == b"\xee" * 4096
        assert scene.memory[12288:] == b"\xee" * (20_000 - 12288)

    run(scenario)


def test_fragments_of_packets() -> None:
    async def scenario(scene: Scene) -> None:
        for size in range(60):
            scene.attacker.socket.sendto(bytes(size), (HOST, scene.attacker.udp_port))
        for size in range(28):
            body = (scene.reth(8) + bytes(8))[:size]
            scene.attacker.send(scene.number, Opcode.WRITE_ONLY, scene.psn + 5, body)
        await scene.settle()
        assert scene.untouched
        assert not scene.victim.closed

    run(scenario)


def a_request(local_id: int, port: int, **changes: Any) -> bytes:
    cma = CMA.pack(CmaHeader(0, 0x40, 1000, bytes(12) + bytes([127, 0, 0, 9]), bytes(12) + bytes([127, 0, 0, 1])))
    request = Req(
        local_id=local_id,
        service_id=0x1060000 | port,
        qpn=(local_id + 100) << 8,
        path_mtu=0x30,
        private_data=cma + bytes(56),
    )
    return mad_bytes(Attribute.REQ, local_id, REQ.pack(request._replace(**changes)))


def test_request_floods_stay_bounded_and_others_are_served() -> None:
    async def main() -> None:
        port = free_port()
        provider = RoceProvider(port)
        seen: list[Any] = []
        listener = await provider.listen(HOST, 0, seen.append)
        attacker = Attacker(port, "127.0.0.9")
        for index in range(1, 1001):
            attacker.mad(a_request(index, listener.address[1]))
            if index % 50 == 0:
                await asyncio.sleep(0.001)
        refused = provider._manager.counters
        # A slow machine has more datagrams waiting than it keeps.
        while refused["dropped_requests"] + provider.counters["dropped_datagrams"] + len(seen) < 1000:
            await asyncio.sleep(0.001)
        assert len(provider._manager) == MAX_PENDING_PER_PEER
        # Nothing is set aside for a request until the application prepares an endpoint.
        assert not provider.endpoints
        await listener.close()
        pair = await connect(provider, HOST)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        for side in (pair.client, pair.server):
            side.endpoint.abort()
            await side.end()
        for request in seen:
            request.reject()
        attacker.socket.close()

    asyncio.run(main())


def test_management_datagrams_with_wrong_frames() -> None:
    async def main() -> None:
        port = free_port()
        provider = RoceProvider(port)
        seen: list[Any] = []
        listener = await provider.listen(HOST, 0, seen.append)
        attacker = Attacker(port, "127.0.0.9")
        good = a_request(5, listener.address[1])
        attacker.mad(good, queue_key=1)
        attacker.mad(good, source=7)
        attacker.mad(good[:-4])
        attacker.mad(good + bytes(4))
        attacker.mad(bytes([2]) + good[1:])
        attacker.mad(good[:16] + b"\0\x77" + good[18:])
        attacker.send(1, Opcode.SEND_ONLY, 0, DETH.pack(Deth(0x80010000, 1)) + good)
        attacker.mad(good)
        while not seen:
            await asyncio.sleep(0.001)
        assert len(seen) == 1
        assert provider.counters["malformed"] == 5
        seen[0].reject()
        await listener.close()
        attacker.socket.close()

    asyncio.run(main())
