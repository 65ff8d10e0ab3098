"""The independent peer as a client of this project's server: every cipher and algorithm, over every fabric (MS-SMB2
3.3.5.12, 3.3.5.13)."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace

import pytest

from tests.lab.transform_client import READ, WRITE, Offer, encode_descriptors
from tests.lab.transform_lab import FABRICS, Setup, TransformLab, play
from tests.lab.transform_peer import Channel, Cipher, Signer, Status
from tests.lab.transform_rules import NEEDS, Need, Way

ALGORITHMS = [*(Offer(cipher=cipher, encrypt=True) for cipher in Cipher), *(Offer(signer=signer) for signer in Signer)]
SIZES = [1, 15, 4096, 4097, 65_537, 300_001, 1 << 20]


def name_of(offer: Offer) -> str:
    return offer.cipher.name if offer.encrypt else offer.signer.name


def some_cuts(length: int) -> list[int]:
    """Return where several descriptors meet, as odd as can be."""
    return sorted({1, length // 3, length // 2 + 1, length - 1})


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("offer", ALGORITHMS, ids=name_of)
def test_every_algorithm_over_every_fabric(fabric: str, offer: Offer) -> None:
    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        assert client.ids == (1, 2)
        assert client.way is (Way.ENCRYPTED if offer.encrypt else Way.SIGNED)
        for size in SIZES:
            data = os.urandom(size)
            for cuts in ([], some_cuts(size)):
                lab.path.write_bytes(b"")
                reply = await client.write(data, 3, cuts)
                assert (reply.status, reply.body[4:8]) == (0, size.to_bytes(4, "little"))
                assert lab.path.read_bytes() == bytes(3) + data
                assert await client.read(size, 3, cuts) == data
        (connection,) = lab.server.connection_list
        moved = 4 * sum(SIZES)
        counted = connection.rdma_bytes_encrypted, connection.rdma_bytes_signed
        assert counted == ((moved, 0) if offer.encrypt else (0, moved))

    play(work, Setup(fabric))


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("offer", [Offer(encrypt=True), Offer(signer=Signer.AES_CMAC)], ids=name_of)
def test_the_largest_transfers_at_once(fabric: str, offer: Offer) -> None:
    """They are protected on worker threads, several at a time, and answered in any order."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        assert client.max_read == client.max_write == 8 << 20
        size = client.max_read if fabric != "roce" else 3 << 20
        parts = [random.randbytes(size) for _ in range(3)]
        replies = await asyncio.gather(*(client.write(part, at * size) for at, part in enumerate(parts)))
        assert [reply.status for reply in replies] == [0] * 3
        assert lab.path.read_bytes() == b"".join(parts)
        assert await asyncio.gather(*(client.read(size, at * size) for at in range(3))) == parts

    play(work, Setup(fabric))


def test_short_reads() -> None:
    """What is protected is what the file had, and not what was asked for."""

    async def work(lab: TransformLab) -> None:
        for offer in ALGORITHMS:
            client = await lab.client(offer)
            await client.log_on()
            lab.path.write_bytes(b"short")
            assert await client.read(4096) == b"short"
            assert await client.read(4096, 4) == b"t"

    play(work)


def wanted(need: Need) -> str:
    return "-".join(
        name
        for name in (
            "session" * need.session_encrypts,
            "share" * need.share_encrypts,
            "sign" * need.must_sign,
            "ids" + "".join(map(str, need.ids)),
        )
        if name
    )


@pytest.mark.parametrize("need", NEEDS, ids=wanted)
def test_what_session_share_and_connection_demand(need: Need) -> None:
    """What cannot be protected by RDMA goes in the message: the server refuses to move it in the clear."""
    setup = Setup(must_sign=need.must_sign, session_encrypts=need.session_encrypts, share_encrypts=need.share_encrypts)

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(ids=need.ids or None))
        await client.log_on()
        if not need.must_sign and not client.encrypts:
            client.signs = False
        assert client.way is need.way
        lab.path.write_bytes(b"from the server")
        if need.way is not Way.MESSAGE:
            assert await client.read(15) == b"from the server"
            assert (await client.write(b"from the client")).status == 0
            assert lab.path.read_bytes() == b"from the client"
            return
        sink, source = client.memory(b"." * 15, writable=True), client.memory(b"from the client")
        asked = client.read_body(15, encode_descriptors(sink.descriptors))
        assert (await client.call(READ, asked)).status == Status.INVALID_PARAMETER
        sent = client.write_body(encode_descriptors(source.descriptors), 15, client.channel)
        assert (await client.call(WRITE, sent)).status == Status.INVALID_PARAMETER
        assert bytes(sink.view) == b"." * 15
        assert lab.path.read_bytes() == b"from the server"
        inline = await client.call(READ, client.read_body(15, b"\0", Channel.NONE))
        assert inline.message.endswith(b"from the server")

    play(work, setup)


def test_a_client_may_sign_more_than_it_must() -> None:
    """Without transforms, data of such requests moves as it always did: nothing demands a signature."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(ids=None))
        await client.log_on()
        lab.path.write_bytes(b"from the server")
        client.offer = replace(client.offer, sign=False)
        assert client.way is Way.CLEAR
        assert await client.read(15) == b"from the server"

    play(work)


@pytest.mark.parametrize("fabric", ["loopback", "registering"])
@pytest.mark.parametrize("offer", [Offer(encrypt=True), Offer()], ids=name_of)
def test_a_warm_connection_allocates_and_registers_nothing(fabric: str, offer: Offer) -> None:
    """Data is protected in the pooled buffer that it is read into or fetched into."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()

        async def there_and_back() -> None:
            data = os.urandom(200_000)
            assert (await client.write(data)).status == 0
            assert await client.read(len(data)) == data

        def counted() -> tuple[int, ...]:
            (connection,) = lab.server.connection_list
            counters = connection.transport.counters
            return lab.server.buffers.allocations, counters["registrations"], counters["allocations"]

        for _ in range(10):
            await there_and_back()
        before = counted()
        for _ in range(10):
            await there_and_back()
        assert counted() == before
        # Only messages are copied for the fabric: data is in registered memory already.
        (connection,) = lab.server.connection_list
        assert connection.transport.counters["bounced_bytes"] < 20_000

    play(work, Setup(fabric))
