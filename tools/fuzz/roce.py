"""Runs against RoCEv2: datagrams of the connection manager and of queue pairs, with right and wrong checksums."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque

from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.cm_messages import (
    ANSWER,
    CMA,
    DREQ,
    REJ,
    REQ,
    Answer,
    Attribute,
    CmaHeader,
    Dreq,
    Rej,
    Req,
    mad_bytes,
)
from smbdirect.providers.roce.headers import BTH, DETH, Bth, Deth
from tools.fuzz.mutation import mutate
from tools.fuzz.smb import Told
from tools.fuzz.watch import Watch

PORT = 4791
SERVER = "127.0.0.1"
DATAGRAMS = 300
_SOURCES = tuple(f"127.0.0.{10 + index}" for index in range(6))
_SEND_ONLY_UD, _MANAGER_KEY, _MANAGER_QUEUE = 0x64, 0x80010000, 1
_SERVICE = 0x0000000001060000
_NO_CHECKSUM = 10
"""setsockopt(IPPROTO_IP, IP_MTU_DISCOVER): RoCE's ICRC covers the don't-fragment bit."""


class RoceRun:
    """One run: some hundred datagrams from six addresses. It needs UDP port 4791, and therefore a network namespace."""

    def __init__(self, watch: Watch, seed: str) -> None:
        self._watch = watch
        self._chance = random.Random(seed)
        self._remote_ids: deque[int] = deque(maxlen=50)
        self._queue_pairs: deque[int] = deque(maxlen=50)
        self.told = Told()

    async def do(self) -> Told:
        """Send the datagrams, and remember the ids in the answers."""
        senders = [sender(address) for address in _SOURCES]
        inboxes = [inbox(address) for address in _SOURCES]
        try:
            for number in range(DATAGRAMS):
                self.told.steps += 1
                self._send(senders)
                self._listen(inboxes)
                if number % 20 == 0:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
        finally:
            for sock in (*senders, *inboxes):
                sock.close()
        return self.told

    def _send(self, senders: list[socket.socket]) -> None:
        chance = self._chance
        at = chance.randrange(len(senders))
        body = self._body(_SOURCES[at])
        if chance.random() < 0.05:
            body = mutate(chance, body)
        body = body.ljust(12, b"\0")
        source, server = socket.inet_aton(_SOURCES[at]), socket.inet_aton(SERVER)
        prefix = icrc.prefix(source, server, senders[at].getsockname()[1], PORT, len(body) + 4)
        check = icrc.of_payload(body, prefix) if chance.random() < 0.95 else chance.randbytes(4)
        self.told.requests += 1
        self.told.last.append(body)
        del self.told.last[:-40]
        try:
            senders[at].sendto(body + check, (SERVER, PORT))
        except OSError:
            return  # A mutation made the datagram too long.

    def _body(self, source: str) -> bytes:
        chance = self._chance
        if chance.random() < 0.3:
            queue_pair = chance.choice([*self._queue_pairs, chance.getrandbits(24)])
            operation = chance.choice((0, 4, 6, 10, 12, 13, 16, 17, 0x17, chance.randrange(256)))
            flags = chance.choice((0x40, 0, 0x70, 0xFF))
            header: bytes = BTH.pack(Bth(operation, flags, 0xFFFF, queue_pair, chance.getrandbits(32)))
            return header + chance.randbytes(chance.choice((0, 4, 16, 60, 300)))
        mad = self._mad(source)
        if chance.random() < 0.4:
            mad = mutate(chance, mad)[:256].ljust(256, b"\0")
        datagram: bytes = BTH.pack(Bth(_SEND_ONLY_UD, 0, 0xFFFF, 1, chance.getrandbits(24)))
        return datagram + DETH.pack(Deth(_MANAGER_KEY, _MANAGER_QUEUE)) + mad

    def _mad(self, source: str) -> bytes:
        chance = self._chance
        ours, theirs = chance.getrandbits(32), chance.choice([*self._remote_ids, chance.getrandbits(32)])
        number = chance.getrandbits(64)
        match chance.randrange(9):
            case 0 | 1 | 2 | 3:
                return mad_bytes(Attribute.REQ, number, self._request(source))
            case 4:
                return mad_bytes(Attribute.RTU, number, ANSWER.pack(Answer(ours, theirs)))
            case 5:
                record = Rej(ours, theirs, message=chance.randrange(256), reason=chance.randrange(40))
                return mad_bytes(Attribute.REJ, number, REJ.pack(record))
            case 6:
                return mad_bytes(Attribute.DREQ, number, DREQ.pack(Dreq(ours, theirs, chance.getrandbits(32))))
            case 7:
                return mad_bytes(chance.choice(list(Attribute)), number, chance.randbytes(232))
            case _:
                return chance.randbytes(256)

    def _request(self, source: str) -> bytes:
        chance = self._chance
        addresses = bytes(12) + socket.inet_aton(source), bytes(12) + socket.inet_aton(SERVER)
        private = CMA.pack(CmaHeader(0, 0x40, chance.randrange(65536), *addresses)).ljust(92, b"\0")
        record = Req(
            local_id=chance.getrandbits(32),
            service_id=_SERVICE | chance.choice((445, 445, 5445, 80)),
            ca_guid=1,
            qpn=chance.getrandbits(24) << 8 | 16,
            local_eecn=16,
            psn=chance.getrandbits(24) << 8 | 0xA7,
            path_mtu=chance.choice((1, 3, 5, 5, 9)) << 4 | 7,
            local_gid=bytes(16),
            remote_gid=bytes(16),
            private_data=private,
        )
        return REQ.pack(record)

    def _listen(self, inboxes: list[socket.socket]) -> None:
        for inbox in inboxes:
            while True:
                try:
                    data = inbox.recv(65536)
                except BlockingIOError:
                    break
                if data[0] != _SEND_ONLY_UD or len(data) < 60:
                    continue
                self._remote_ids.append(int.from_bytes(data[44:48], "big"))
                if int.from_bytes(data[36:38], "big") == Attribute.REP:
                    self._queue_pairs.append(int.from_bytes(data[56:59], "big"))


def sender(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, _NO_CHECKSUM, 2)
    sock.bind((address, 0))
    return sock


def inbox(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, PORT))
    sock.setblocking(False)
    return sock
