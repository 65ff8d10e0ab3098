"""Attacks with compressed messages: some bytes that declare, and are, megabytes. [MS-SMB2 2.2.42, 3.3.5.2.1.2]"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator

from smb3server.client.protocol import Client, open_tcp
from smb3server.client.protocol.negotiation import Offer
from smb3server.compression import codecs
from smb3server.compression.transform import OVERHEAD
from smb3server.wire.compression import CompressionAlgorithm
from smbdirect.errors import ConnectionLost
from tools.attacks.lab import Target, case, password
from tools.attacks.raw import header

_LZ77, _PATTERN = CompressionAlgorithm.LZ77, CompressionAlgorithm.PATTERN_V1
_OFFER = Offer(compression=tuple(algorithm for algorithm in (_LZ77, _PATTERN) if algorithm in codecs.QUICK))
_CONNECTIONS, _AT_ONCE = 40, 4
_ECHO = 13


def _chain(original: int, *payloads: tuple[int, bytes]) -> bytes:
    parts = (
        struct.pack("<HHI", algorithm, not number, len(data)) + data
        for number, (algorithm, data) in enumerate(payloads)
    )
    return struct.pack("<4sI", b"\xfcSMB", original) + b"".join(parts)


def _pattern(count: int) -> tuple[int, bytes]:
    return _PATTERN, struct.pack("<BBHI", 0, 0, 0, count)


def _honest(message: bytes, limit: int) -> Iterator[bytes]:
    """Yield compressed forms of ``message`` and of zeros behind it, of ``limit`` bytes in all. They are well-formed."""
    zeros = limit - len(message)
    yield _chain(limit, (0, message), _pattern(zeros))
    few = zeros // 254
    rest = zeros - 253 * few
    yield _chain(limit, (0, message), *[_pattern(few)] * 253, _pattern(rest))
    if _LZ77 in codecs.QUICK:
        packed = codecs.compress(_LZ77, bytes(zeros), zeros)
        if packed is not None:
            yield struct.pack("<4sIHHI", b"\xfcSMB", zeros, _LZ77, 0, len(message)) + message + packed


def _lies(message: bytes, limit: int) -> Iterator[bytes]:
    """Yield messages that must end the connection."""
    yield _chain(0xFFFFFFFF, (0, message), _pattern(0xFFFFFFFF - len(message)))
    yield _chain(limit + 1, (0, message), _pattern(limit + 1 - len(message)))
    yield _chain(limit, (0, message), _pattern(0xFFFFFFFF))
    yield _chain(len(message) + 300, (0, message), *[_pattern(1)] * 300)
    yield struct.pack("<4sIHHI", b"\xfcSMB", limit, _LZ77, 0, 0) + b"\xff" * 4000


async def _connect(target: Target) -> Client:
    return await Client.connect(await open_tcp("127.0.0.1", target.port), offer=_OFFER)


def _limit(client: Client) -> int:
    sizes = client.negotiated
    return OVERHEAD + max(sizes.max_read_size, sizes.max_write_size, sizes.max_transact_size)


async def _bombs(target: Target, number: int) -> None:
    """Send ECHOs that are megabytes when they are decompressed, until the time is over."""
    until = target.until()
    while time.monotonic() < until:
        client = await _connect(target)
        try:
            session = await client.log_on("carol", password("carol"))
            for index in range(_AT_ONCE):
                message = header(_ECHO, client._next_message_id + index, session.session_id) + b"\4\0\0\0"
                forms = list(_honest(message, _limit(client)))
                client.transport.send((forms[(number + index) % len(forms)],))
            await asyncio.sleep(0.3)
        except ConnectionLost:
            await asyncio.sleep(0.05)
        finally:
            client.transport.abort("the next one")


@case()
async def compressed_bombs(target: Target) -> None:
    """On 40 connections send messages of a few hundred bytes that are 8 MiB decompressed, four at a time, by chains of
    2 and of 255 payloads and by one long match; then messages that declare more than they may, or another size than
    they have: each must end its connection. Strangers may declare no more than they may send."""
    await asyncio.gather(*(_bombs(target, number) for number in range(_CONNECTIONS)))
    await _refused(target, known=True)
    await _refused(target, known=False)


async def _refused(target: Target, known: bool) -> None:
    """Check that lies end the connection of a user, and of a stranger, who may not even declare what users may."""
    for number in range(5 + (not known)):
        client = await _connect(target)
        session_id = (await client.log_on("carol", password("carol"))).session_id if known else 0
        message = header(_ECHO, client._next_message_id, session_id) + b"\4\0\0\0"
        lies = [*_lies(message, _limit(client)), next(_honest(message, _limit(client)))]
        client.transport.send((lies[number],))
        for _ in range(100):
            if client.closed is not None:
                break
            await asyncio.sleep(0.02)
        else:
            target.fail(f"a connection goes on after lie {number}{'' if known else ' of a stranger'}")
        client.transport.abort("the attack ends")
