"""What happens in the middle of a protected transfer: CANCEL, CLOSE, the end of the connection. And compounds of them
(MS-SMB2 3.3.5.12, 3.3.5.13, 3.3.5.16, 3.3.5.2.7)."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from smb3server.dispatch import rdma_transforms
from tests.lab import transform_messages as messages
from tests.lab.transform_client import CANCEL, CLOSE, READ, WRITE, Offer, Reply, TransformClient, encode_descriptors
from tests.lab.transform_lab import Setup, TransformLab, play
from tests.lab.transform_peer import Chain, Cipher, Signer, Status, encode_chain

CANCELLED, FILE_CLOSED = 0xC0000120, 0xC0000128
SIZE = 300_000
UNTOUCHED = b"was there before"
OFFERS = [Offer(encrypt=True), Offer(cipher=Cipher.AES_128_CCM, encrypt=True), Offer(signer=Signer.AES_CMAC)]


def name_of(offer: Offer) -> str:
    return offer.cipher.name if offer.encrypt else offer.signer.name


class Gate:
    """Holds the worker threads that protect payloads, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def wrap(self, made: Callable[..., rdma_transforms.Transform | None]) -> Callable[..., object]:
        def make(*arguments: object) -> rdma_transforms.Transform | None:
            transform = made(*arguments)
            if transform is None:
                return None
            run = transform.run

            def held(payload: memoryview) -> bytes:
                self.reached.set()
                assert self.open.wait(10)
                return run(payload)

            return transform._replace(run=held)

        return make

    async def until_reached(self) -> None:
        while not self.reached.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(rdma_transforms, "LONG_FROM", 1)
    monkeypatch.setattr(rdma_transforms, "LONG_FROM_IF_SLOW", 1)
    for name in ("for_read", "for_write"):
        monkeypatch.setattr(rdma_transforms, name, made.wrap(getattr(rdma_transforms, name)))
    yield made
    made.open.set()


def cancel(client: TransformClient, message_id: int) -> None:
    """Send CANCEL, which has the MessageId of the request that it cancels."""
    header = messages.Header(CANCEL, message_id, credits=0, session_id=client.session_id)
    client.send(header.encode() + struct.pack("<HH", 4, 0))


@pytest.mark.parametrize("offer", OFFERS, ids=name_of)
@pytest.mark.parametrize("write", [False, True], ids=["READ", "WRITE"])
def test_cancel_in_the_middle(gate: Gate, offer: Offer, write: bool) -> None:
    """The request fails with CANCELLED, its token is invalidated, and neither memory nor file changes later."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED if write else os.urandom(SIZE))
        message, memory = client.write_request(os.urandom(SIZE)) if write else client.read_request(SIZE)
        before = bytes(memory.view)
        number = client.post(message)
        await gate.until_reached()
        cancel(client, number)
        if not write:
            # The answer does not wait for the thread.
            assert (await client.answer(number)).status == CANCELLED
        gate.open.set()
        if write:
            assert (await client.answer(number)).status == CANCELLED
        await lab.settled()
        assert memory.registered.invalidated
        assert bytes(memory.view) == before
        if write:
            assert lab.path.read_bytes() == UNTOUCHED
        memory.registered.deregister()
        assert (await client.write(b"and on")).status == Status.SUCCESS

    play(work)


@pytest.mark.parametrize("offer", OFFERS, ids=name_of)
@pytest.mark.parametrize("write", [False, True], ids=["READ", "WRITE"])
@pytest.mark.parametrize("fabric", ["loopback", "iwarp"])
def test_connection_lost_in_the_middle(gate: Gate, offer: Offer, write: bool, fabric: str) -> None:
    """Nothing is written, and the buffers are given back."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED * 20_000)
        message, _ = client.write_request(os.urandom(SIZE)) if write else client.read_request(SIZE)
        client.post(message)
        await gate.until_reached()
        client.transport.abort("in the middle")
        while lab.server.connection_list:
            await asyncio.sleep(0.005)
        gate.open.set()
        await lab.settled()
        assert lab.path.read_bytes() == UNTOUCHED * 20_000

    play(work, Setup(fabric))


def test_connection_lost_while_data_is_fetched() -> None:
    """At any point of it."""

    async def work(lab: TransformLab) -> None:
        for count in range(6):
            lab.path.write_bytes(UNTOUCHED)
            client = await lab.client(Offer(encrypt=True))
            await client.log_on()
            lab.provider.faults.drop_after = count  # type: ignore[attr-defined]
            number = client.post(client.write_request(os.urandom(SIZE))[0])
            other = client.post(client.read_request(16)[0])
            try:
                await client.answer(number)
                await client.answer(other)
            except asyncio.CancelledError:
                assert client.closed.is_set()
            lab.provider.faults.drop_after = None  # type: ignore[attr-defined]
            client.transport.abort("the next one")
            while lab.server.connection_list:
                await asyncio.sleep(0.005)
            await lab.settled()
            assert lab.path.stat().st_size in (len(UNTOUCHED), SIZE)

    play(work)


def test_close_in_the_middle(gate: Gate) -> None:
    """The open is gone when the data has been checked, and nothing is written."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(encrypt=True))
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED)
        message, memory = client.write_request(os.urandom(SIZE))
        number = client.post(message)
        await gate.until_reached()
        assert (await client.call(CLOSE, struct.pack("<HHI", 24, 0, 0) + client.file_id)).status == Status.SUCCESS
        gate.open.set()
        reply = await client.answer(number)
        assert reply.status != Status.SUCCESS
        assert lab.path.read_bytes() == UNTOUCHED
        memory.registered.deregister()

    play(work)


@pytest.mark.parametrize("offer", OFFERS[:2], ids=name_of)
@pytest.mark.parametrize("long", [False, True], ids=["on the loop", "on threads"])
def test_compounds(offer: Offer, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member has memory of its own, and each token is invalidated: one by a message."""
    if long:
        monkeypatch.setattr(rdma_transforms, "LONG_FROM", 1)
        monkeypatch.setattr(rdma_transforms, "LONG_FROM_IF_SLOW", 1)

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED)
        data = os.urandom(SIZE)
        first, source = client.write_request(data)
        second, sink = client.read_request(SIZE)
        third, other = client.read_request(1000, 500)
        numbers = client.send_compound(first, second, third)
        replies: list[Reply] = [await client.answer(number) for number in numbers]
        assert [reply.status for reply in replies] == [0, 0, 0]
        assert lab.path.read_bytes() == data
        assert client.take(replies[1], sink) == data
        assert client.take(replies[2], other) == data[500:1500]
        for memory in (source, sink, other):
            assert memory.registered.invalidated
            memory.registered.deregister()

    play(work)


def test_compound_goes_on_behind_a_refused_member() -> None:
    """MS-SMB2 3.3.5.2.7.1: the members are not related."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(encrypt=True))
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED)
        _, crypto = client.protected(b"data")
        source = client.memory(b"data")
        bad = client.build(WRITE, client.write_body(encode_chain(Chain(1, (crypto, crypto), source.descriptors)), 4))
        forged = client.build(WRITE, client.write_body(encode_chain(Chain(1, (crypto,), source.descriptors)), 4))
        sink = client.memory(b"." * 16, writable=True)
        good = client.build(READ, client.read_body(16, encode_descriptors(sink.descriptors)))
        replies = [await client.answer(number) for number in client.send_compound(bad, forged, good)]
        wanted = [Status.INVALID_PARAMETER, Status.AUTH_TAG_MISMATCH, Status.SUCCESS]
        assert [reply.status for reply in replies] == wanted
        assert client.take(replies[2], sink) == UNTOUCHED
        source.registered.deregister()
        sink.registered.deregister()

    play(work)


def test_the_event_loop_goes_on_while_a_payload_is_protected(gate: Gate) -> None:
    """Other clients are served meanwhile."""

    async def work(lab: TransformLab) -> None:
        client, other = await lab.client(Offer(encrypt=True)), await lab.client(Offer(ids=None))
        await client.log_on()
        await other.log_on()
        lab.path.write_bytes(UNTOUCHED)
        other.signs = False
        message, memory = client.read_request(16)
        number = client.post(message)
        await gate.until_reached()
        assert await other.read(16) == UNTOUCHED
        gate.open.set()
        assert client.take(await client.answer(number), memory) == UNTOUCHED
        memory.registered.deregister()

    play(work)
