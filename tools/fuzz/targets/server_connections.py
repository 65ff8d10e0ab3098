"""Whole connections: two clients' messages to a server, over direct TCP's seam and SMB Direct.

The first byte of the input chooses transport, dialect and protection. The first byte of each message says who sends it
and which fields of its header are put right; the rest is an SMB2 message.
"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.wire.header import HEADER, HEADER_SIZE, Command
from smb3server.wire.negotiate import Dialect
from tools.fuzz import framed, scripts, seeds
from tools.fuzz.in_memory import USER, RawClient, World, world
from tools.fuzz.target import Target

DIALECTS = (Dialect.SMB_3_1_1, Dialect.SMB_2_1, Dialect.SMB_3_0_2, Dialect.SMB_2_0_2)
ENCRYPTED, RDMA, STRANGER = 4, 8, 16
"""Bits of the input's first byte, above the dialect."""
SECOND, KEEP_ID, KEEP_SESSION, KEEP_TREE, KEEP_FILE, WAIT = 1, 2, 4, 8, 16, 32
"""Bits of a message's first byte."""
FILE_ID_AT = {5: 0, 6: 8, 7: 8, 8: 16, 9: 16, 10: 8, 11: 8, 14: 8, 15: 8, 16: 24, 17: 16}
"""Where the FileId is in the body, by command."""


def _put_right(client: RawClient, flags: int, message: bytes) -> bytes:
    if len(message) < HEADER_SIZE:
        return message
    header = HEADER.unpack(message)._replace(protocol_id=b"\xfeSMB", structure_size=HEADER_SIZE)
    if not flags & KEEP_ID:
        header = header._replace(message_id=client.message_id, credit_charge=1, credits=32)
        client.message_id += 1
    if not flags & KEEP_SESSION and client.session is not None:
        header = header._replace(session_id=client.session.session_id)
    if not flags & KEEP_TREE:
        header = header._replace(tree_id=client.trees[header.tree_id & 1])
    body = bytearray(message[HEADER_SIZE:])
    at = FILE_ID_AT.get(header.command, 0)
    if at and len(body) >= at + 16 and client.files and not flags & KEEP_FILE:
        body[at : at + 16] = client.files[body[at] % len(client.files)]
    return HEADER.pack(header) + body


def _note_opens(client: RawClient) -> None:
    for reply in client.replies:
        if len(reply) >= HEADER_SIZE + 80 and reply[8:12] == bytes(4) and reply[12] == Command.CREATE:
            client.files.append(reply[HEADER_SIZE + 64 : HEADER_SIZE + 80])
    client.replies.clear()


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
            client.post(message[1:] if mode & STRANGER else _put_right(client, flags, message[1:]))
            made.loop.pass_time(50.0 if flags & WAIT else 0.001)
            for each in clients.values():
                _note_opens(each)


def _seeds() -> Iterator[bytes]:
    for number, script in enumerate(scripts.scripts()):
        for mode in (number % 4, (ENCRYPTED, RDMA)[number & 1]):
            yield bytes((mode,)) + framed.join([bytes((who,)) + part for who, part in script])
    for requests in seeds.conversations():
        for mode in (0, 1, 2, ENCRYPTED, RDMA, STRANGER):
            for start in range(0 if mode == STRANGER else 4, min(len(requests), 60), 12):
                yield bytes((mode,)) + framed.join([bytes((0,)) + part for part in requests[start : start + 14]])


TARGET = Target(_run, _seeds, mutate=framed.mutate_behind(1), max_input=8192)
