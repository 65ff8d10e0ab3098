"""Attacks on RoCEv2's connection manager, with datagrams whose source address is not verified."""

from __future__ import annotations

import asyncio
import os
import random
import socket

from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.cm_messages import ANSWER, CMA, REQ, Answer, Attribute, CmaHeader, Req, mad_bytes
from smbdirect.providers.roce.headers import BTH, DETH, Bth, Deth
from tools.attacks.lab import Target, case
from tools.fuzz.roce import PORT, SERVER, inbox, sender

_CONFIG = 'rdma = "roce"\n'
_SERVICE = 0x0000000001060000
_SMB_PORTS = (5445, 445)
_UD_SEND = 0x64


class Source:
    """One address that sends CM datagrams."""

    def __init__(self, address: str) -> None:
        self._address = socket.inet_aton(address)
        self._out, self._in = sender(address), inbox(address)

    def send(self, mad: bytes) -> int:
        """Send a MAD with a valid ICRC. Return the bytes sent."""
        body = BTH.pack(Bth(_UD_SEND, 0, 0xFFFF, 1, 1)) + DETH.pack(Deth(0x80010000, 1)) + mad
        port = self._out.getsockname()[1]
        state = icrc.prefix(self._address, socket.inet_aton(SERVER), port, PORT, len(body) + 4)
        packet = body + icrc.of_payload(body, state)
        self._out.sendto(packet, (SERVER, PORT))
        return len(packet)

    def request(self, service_port: int) -> int:
        """Send a REQ. Return the bytes sent."""
        addresses = bytes(12) + self._address, bytes(12) + socket.inet_aton(SERVER)
        private = CMA.pack(CmaHeader(0, 0x40, 1234, *addresses)).ljust(92, b"\0")
        record = Req(
            local_id=random.getrandbits(32),
            service_id=_SERVICE | service_port,
            ca_guid=1,
            qpn=0x123456 << 8 | 16,
            local_eecn=16,
            psn=0x111111 << 8 | 0xA7,
            path_mtu=5 << 4 | 7,
            local_gid=bytes(16),
            remote_gid=bytes(16),
            private_data=private,
        )
        return self.send(mad_bytes(Attribute.REQ, int.from_bytes(os.urandom(8)), REQ.pack(record)))

    def answers(self) -> list[bytes]:
        """Return the answers received so far."""
        found = []
        while True:
            try:
                found.append(self._in.recv(65536))
            except BlockingIOError:
                return found

    def close(self) -> None:
        """Close both sockets."""
        self._out.close()
        self._in.close()


async def _service_port(target: Target) -> int:
    """Return the port at which the server answers a REQ."""
    for port in (target.server.ports.get("roce", 0), *_SMB_PORTS):
        probe = Source("127.0.0.9")
        probe.request(port)
        await asyncio.sleep(0.3)
        found = probe.answers()
        probe.close()
        if any(int.from_bytes(answer[36:38], "big") == Attribute.REP for answer in found):
            return port
    raise RuntimeError("the server answers no REQ")


@case(config=_CONFIG, alone=True)
async def reflection(target: Target) -> None:
    """Send one REQ and never answer: the server must not send more bytes than it received."""
    port = await _service_port(target)
    victim = Source("127.0.0.10")
    sent = victim.request(port)
    await asyncio.sleep(10)
    answers = victim.answers()
    received = sum(map(len, answers))
    victim.close()
    target.note(f"{sent} bytes sent, {received} received in {len(answers)} datagrams")
    if received > sent:
        target.fail(f"a datagram of {sent} bytes brings {received} to its source")


@case(config=_CONFIG, alone=True)
async def half_open_roce(target: Target) -> None:
    """Send hundreds of REQs from eight addresses that never answer: another address must still get an answer."""
    port = await _service_port(target)
    sources = [Source(f"127.0.0.{20 + index}") for index in range(8)]
    for _ in range(60):
        for source in sources:
            source.request(port)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.3)
    honest = Source("127.0.0.77")
    honest.request(port)
    await asyncio.sleep(1)
    if not any(int.from_bytes(answer[36:38], "big") == Attribute.REP for answer in honest.answers()):
        target.fail("another address's REQ is not answered")
    for source in (*sources, honest):
        source.close()


@case(config=_CONFIG, alone=True)
async def silent_queue_pairs(target: Target) -> None:
    """Establish thousands of connections that then send nothing."""
    port = await _service_port(target)
    sources = [Source(f"127.0.0.{100 + index}") for index in range(30)]
    end, made = target.until(), 0
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        for source in sources:
            for _ in range(4):
                source.request(port)
        await asyncio.sleep(0.02)
        for source in sources:
            for answer in source.answers():
                if answer[0] == _UD_SEND and int.from_bytes(answer[36:38], "big") == Attribute.REP:
                    theirs, ours = int.from_bytes(answer[44:48], "big"), int.from_bytes(answer[48:52], "big")
                    source.send(mad_bytes(Attribute.RTU, 1, ANSWER.pack(Answer(ours, theirs))))
                    made += 1
    target.note(f"{made} connections")
    for source in sources:
        source.close()
