"""Packets of a reliable connection of RoCEv2, their runs, and the answers. [IBTA 9.7, A17]

The input's messages are packets without ICRC. The first byte of each says what else happens before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from smbdirect.providers.roce.arrival import MIN_PACKET, runs
from smbdirect.providers.roce.headers import RETH, Opcode, Reth
from smbdirect.providers.roce.queue_pair import QueuePair
from smbdirect.providers.roce.responder import Responder
from tools.fuzz import framed
from tools.fuzz.regions import Regions, check_guards
from tools.fuzz.roce_path import FLOW, NoPath, packet, read, send, whole
from tools.fuzz.target import Target

_WORK = {1: send, 2: read}


def _run(data: bytes) -> None:
    pair, path = QueuePair(7), NoPath()
    regions = pair.regions = Regions()
    pair.responder = Responder(regions, pair.completions, pair.counters, pair.fail)
    for _ in range(4):
        pair.responder.receives.append((memoryview(bytearray(2048)), None))
    pair.start(100, 200, 1024, 4, 7)
    pair.ready_to_send = True
    now = 1.0
    for message in framed.split(data):
        action, arrived = message[:1], whole(message[1:])
        if len(arrived) < MIN_PACKET or not action:
            continue
        if action[0] & 3 in _WORK:
            pair.requester.post(_WORK[action[0] & 3]())
        now += (action[0] >> 2) / 16
        deadline = pair.next_deadline
        if deadline is not None and deadline <= now:
            pair.handle_timer(now)
        if action[0] & 0x80:
            for run in runs(arrived, len(arrived), FLOW):
                if run.intact:
                    pair.receive_run(run, now)
        else:
            pair.receive(arrived, now)
        pair.transmit(path, now, 64)
    pair.flush()
    check_guards(regions)


def _seeds() -> Iterator[bytes]:
    memory = RETH.pack(Reth(Regions.ADDRESS, Regions.TOKEN, 2048))
    first = packet(Opcode.WRITE_FIRST, 200, memory, bytes(1024))
    yield framed.join(
        [first, packet(Opcode.WRITE_LAST, 201, b"", bytes(1024)), packet(Opcode.SEND_ONLY, 202, b"", b"abcd")]
    )
    yield framed.join([packet(Opcode.READ_REQUEST, 200, memory), packet(Opcode.SEND_ONLY_INVALIDATE, 202, bytes(4))])
    answers = [
        packet(Opcode.ACKNOWLEDGE, 100, b"\x1f\0\0\1"),
        packet(Opcode.READ_RESPONSE_ONLY, 100, b"\x1f\0\0\1", bytes(64)),
    ]
    for action in (1, 2, 0x81):
        yield framed.join([bytes((action,)) + answer[1:] for answer in answers])


TARGET = Target(_run, _seeds, mutate=framed.mutate)
