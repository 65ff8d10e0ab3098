"""Whole connections: two clients' messages to a server, over direct TCP's seam and SMB Direct.

The first byte of the input chooses transport, dialect and protection. The first byte of each message says who sends it
and which fields of its header are put right; the rest is an SMB2 message.
"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.wire.negotiate import Dialect
from tools.fuzz import framed, scripts, seeds
from tools.fuzz.in_memory import USER, RawClient, World, world
from tools.fuzz.raw_requests import SECOND, WAIT, note_opens, put_right
from tools.fuzz.target import Target

DIALECTS = (Dialect.SMB_3_1_1, Dialect.SMB_2_1, Dialect.SMB_3_0_2, Dialect.SMB_2_0_2)
ENCRYPTED, RDMA, STRANGER = 4, 8, 16
"""Bits of the input's first byte, above the dialect."""


def _client(made: World, mode: int) -> RawClient:
    if mode & STRANGER:
        return made.loop.run_until_complete(made.stranger())
    rdma = bool(mode & RDMA)
    dialect = DIALECTS[mode & 3] if not rdma else Dialect.SMB_3_1_1
    encrypt = bool(mode & ENCRYPTED) and dialect >= Dialect.SMB_3_0
    return made.loop.run_until_complete(made.client(USER, (dialect,), rdma, encrypt))


def _run(data: bytes) -> None:
    with world() as made:
        mode = data[0] if data else 0
        clients: dict[int, RawClient] = {}
        for message in framed.split(data[1:]):
            flags = message[0] if message else 0
            # Most of the time goes into logons: only who says something comes.
            client = clients.get(flags & SECOND)
            if client is None:
                client = clients[flags & SECOND] = _client(made, mode)
                made.soil()
            client.post(message[1:] if mode & STRANGER else put_right(client, flags, message[1:]))
            made.loop.pass_time(50.0 if flags & WAIT else 0.001)
            for each in clients.values():
                note_opens(each)


def _seeds() -> Iterator[bytes]:
    for number, script in enumerate(scripts.scripts()):
        for mode in (number % 4, (ENCRYPTED, RDMA)[number & 1]):
            yield bytes((mode,)) + framed.join([bytes((who,)) + part for who, part in script])
    for requests in seeds.conversations():
        for mode in (0, 1, 2, ENCRYPTED, RDMA, STRANGER):
            for start in range(0 if mode == STRANGER else 4, min(len(requests), 60), 12):
                yield bytes((mode,)) + framed.join([bytes((0,)) + part for part in requests[start : start + 14]])


TARGET = Target(_run, _seeds, mutate=framed.mutate_behind(1), max_input=8192)
