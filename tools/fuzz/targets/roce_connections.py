"""RoCEv2's connection manager, as the listening and as the connecting side. [IBTA 12.9]

The input's messages are datagrams. The first byte of each says how the application answers, and how much time passes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from smbdirect.providers.roce.cm import ConnectionManager
from smbdirect.providers.roce.cm_messages import MAD_LENGTH
from tools.fuzz import framed
from tools.fuzz.roce_application import OURS, serve
from tools.fuzz.target import Target, Wrong

PORT = 5445
ADDRESSES = (b"\x0a\0\0\1", b"\x0a\0\0\2")
MOST_ANSWERS = 3
"""Datagrams that an unproven peer may cause by one of its own."""


def _run(data: bytes) -> None:
    manager = ConnectionManager(random.Random(1).getrandbits, lambda path, port: port == PORT)
    now = 1.0
    if data[:1] == b"\1":
        manager.connect("path", PORT, 40000, ADDRESSES, OURS, b"hello", now)
        serve(manager, 1, now)
    for message in framed.split(data[1:]):
        action = message[0] if message else 0
        manager.receive(memoryview(message[1:].ljust(MAD_LENGTH, b"\0")[:MAD_LENGTH]), "path", now)
        if len(serve(manager, action, now)) > MOST_ANSWERS:
            raise Wrong("many answers to one datagram")
        now += (action >> 2) / 4
        if manager.next_deadline is not None and manager.next_deadline <= now:
            manager.handle_timer(now)
            serve(manager, action, now)


def _seeds() -> Iterator[bytes]:
    client, server = (ConnectionManager(random.Random(n).getrandbits, lambda path, port: True) for n in (1, 1))
    connection = client.connect("path", PORT, 40000, ADDRESSES, OURS, b"hello", 1.0)
    said: tuple[list[bytes], list[bytes]] = ([], [])
    for turn in range(8):
        if turn == 4:
            client.disconnect(connection, 1.0)
        for sender, receiver, messages in ((client, server, said[0]), (server, client, said[1])):
            for datagram in serve(sender, 1, 1.0):
                messages.append(b"\1" + datagram)
                receiver.receive(memoryview(datagram), "path", 1.0)
    yield b"\0" + framed.join(said[0])
    yield b"\1" + framed.join(said[1])


TARGET = Target(_run, _seeds, mutate=framed.mutate_behind(1))
