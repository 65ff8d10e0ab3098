"""Every rule by which the server refuses a transform (MS-SMB2 3.3.5.4, 3.3.5.12, 3.3.5.13).

The rules and a judge of requests are ``transform_rules``, which knows nothing of this project.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lab.transform_client import (
    CHANNEL_OFFSET,
    PREAUTH,
    RDMA_TRANSFORM,
    READ,
    WRITE,
    Memory,
    Offer,
    TransformClient,
    encode_descriptors,
)
from tests.lab.transform_lab import Setup, TransformLab, play
from tests.lab.transform_messages import decode_contexts
from tests.lab.transform_peer import (
    Chain,
    Channel,
    Cipher,
    Crypto,
    Descriptor,
    Kind,
    Refused,
    Signer,
    Status,
    decode_chain,
    encode_capabilities,
    encode_chain,
    unprotect,
)
from tests.lab.transform_rules import WRITE_RULES, Rule, Write, good_chain, judge_write

UNTOUCHED = b"was there before"
PAGE = 4096


def prepared(client: TransformClient) -> tuple[bytes, Memory, Write]:
    """Return data, memory with it in two descriptors, and a good WRITE of half of it."""
    data = os.urandom(PAGE)
    placed, crypto = client.protected(data)
    memory = client.memory(placed + bytes(PAGE), [PAGE])
    chain = encode_chain(Chain(Channel.RDMA_V1, (crypto,), memory.descriptors))
    encrypted = client.kind is Kind.ENCRYPTION
    return data, memory, Write(chain, encrypted, not encrypted, client.ids, client.offer.cipher, remaining=PAGE)


async def outcome(client: TransformClient, request: Write) -> int:
    """Send a WRITE as described, and return its status."""
    remaining = request.remaining if request.remaining <= request.max_write else client.max_write + 1
    body = client.write_body(
        request.chain, remaining, length=request.length, data_offset=request.data_offset, info_offset=CHANNEL_OFFSET
    )
    return (await client.call(WRITE, body, encrypt=request.encrypted, sign=request.signed)).status


def offered(rule: Rule[Write]) -> Offer:
    """Return what a client offers whose WRITEs can break the rule: its ids are agreed upon before."""
    return Offer(ids=sample(rule).ids or None, encrypt=rule.kind is Kind.ENCRYPTION)


def sample(rule: Rule[Write]) -> Write:
    """Return some WRITE that breaks the rule."""
    descriptors = (Descriptor(0, 1, PAGE), Descriptor(PAGE, 1, PAGE))
    return rule.break_it(Write(good_chain(rule.kind, descriptors=descriptors), True, True))


def with_large_descriptor(chain: bytes) -> bytes:
    """Let the descriptors hold enough for any RemainingBytes."""
    at = int.from_bytes(chain[:2], "little")
    return chain[: at + 12] + b"\xff\xff\xff\x7f" + chain[at + 16 :]


@pytest.mark.parametrize("rule", WRITE_RULES, ids=lambda rule: rule.name)
def test_rules_of_writes(rule: Rule[Write]) -> None:
    async def work(lab: TransformLab) -> None:
        lab.path.write_bytes(UNTOUCHED)
        over_tcp = not sample(rule).rdma
        client = await lab.client(offered(rule), rdma=not over_tcp)
        await client.log_on()
        helper = await lab.client(Offer(encrypt=client.encrypts))
        await helper.log_on()
        with_rdma = helper if over_tcp else client
        data, memory, good = prepared(with_rdma)
        broken = rule.break_it(replace(good, ids=client.ids))
        if broken.max_write < broken.remaining:
            broken = replace(broken, chain=with_large_descriptor(broken.chain))
        assert await outcome(client, broken) == rule.status
        assert lab.path.read_bytes() == UNTOUCHED
        # The same request with nothing broken is served, so it was this rule that refused the other.
        if not over_tcp and client.ids == (1, 2):
            assert await outcome(client, good) == Status.SUCCESS
            assert lab.path.read_bytes() == data
        memory.registered.deregister()

    play(work)


ALGORITHMS = [*(Offer(cipher=cipher, encrypt=True) for cipher in Cipher), *(Offer(signer=signer) for signer in Signer)]


def name_of(offer: Offer) -> str:
    return offer.cipher.name if offer.encrypt else offer.signer.name


@pytest.mark.parametrize("size", [PAGE, 1 << 20], ids=["on the loop", "on a thread"])
@pytest.mark.parametrize("offer", ALGORITHMS, ids=name_of)
def test_nothing_is_written_that_is_not_authentic(offer: Offer, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payload, signature and nonce changed; a signature of another length (3.3.5.13)."""
    monkeypatch.setattr("smb3server.dispatch.rdma_transforms.LONG_FROM", 1 << 20)

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED)
        wrong = Status.AUTH_TAG_MISMATCH if offer.encrypt else Status.INVALID_SIGNATURE
        data = os.urandom(size)
        placed, crypto = client.protected(data)
        memory = client.memory(placed)

        def flipped(field: bytes, at: int = 0) -> bytes:
            return field[:at] + bytes([field[at] ^ 1]) + field[at + 1 :]

        cases = [
            replace(crypto, signature=flipped(crypto.signature)),
            replace(crypto, signature=flipped(crypto.signature, 15)),
            replace(crypto, signature=crypto.signature[:15]),
            replace(crypto, signature=b""),
            replace(crypto, signature=bytes(16)),
        ]
        if crypto.nonce:
            cases += [replace(crypto, nonce=flipped(crypto.nonce)), replace(crypto, nonce=b"")]
        for case in cases:
            chain = encode_chain(Chain(Channel.RDMA_V1, (case,), memory.descriptors))
            assert (await client.call(WRITE, client.write_body(chain, size))).status == wrong, case
        chain = encode_chain(Chain(client.channel, (crypto,), memory.descriptors))
        for at in (0, size // 2, size - 1):
            memory.view[at] ^= 1
            body = client.write_body(encode_chain(Chain(Channel.RDMA_V1, (crypto,), memory.descriptors)), size)
            assert (await client.call(WRITE, body)).status == wrong, at
            memory.view[at] ^= 1
        assert lab.path.read_bytes() == UNTOUCHED
        # Nonces of the client may come again (the server keeps no list of them), and the payload is good.
        assert (await client.call(WRITE, client.write_body(chain, size))).status == Status.SUCCESS
        assert lab.path.read_bytes() == data
        memory.registered.deregister()

    play(work)


def test_a_failed_write_invalidates_its_token_too() -> None:
    """MS-SMBD 3.1.4.2: the client does not do it itself."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(encrypt=True))
        await client.log_on()
        _, crypto = client.protected(b"data")
        for bad in (replace(crypto, signature=bytes(16)), replace(crypto, kind=Kind.SIGNING)):
            memory = client.memory(b"data")
            chain = encode_chain(Chain(client.channel, (bad,), memory.descriptors))
            assert (await client.call(WRITE, client.write_body(chain, 4))).status != Status.SUCCESS
            assert memory.registered.invalidated
            memory.registered.deregister()

    play(work)


def test_signatures_without_a_nonce_may_come_with_one() -> None:
    """No rule of 3.3.5.13 names it, and the signature does not depend on it. The peer would refuse it."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(signer=Signer.AES_CMAC))
        await client.log_on()
        _, crypto = client.protected(b"data")
        memory = client.memory(b"data")
        chain = encode_chain(Chain(Channel.RDMA_V1, (replace(crypto, nonce=bytes(12)),), memory.descriptors))
        assert (await client.call(WRITE, client.write_body(chain, 4))).status == Status.SUCCESS
        assert lab.path.read_bytes() == b"data"
        memory.registered.deregister()

    play(work)


def test_descriptors_may_hold_more_than_is_written() -> None:
    """What is fetched is RemainingBytes, and so is what was protected: it is never BAD_DATA."""

    async def work(lab: TransformLab) -> None:
        for offer in (Offer(encrypt=True), Offer()):
            client = await lab.client(offer)
            await client.log_on()
            data, memory, good = prepared(client)
            assert await outcome(client, good) == Status.SUCCESS
            assert lab.path.read_bytes() == data
            memory.registered.deregister()

    play(work)


# Differential tests

EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 55), st.integers(0, 255)),
        st.tuples(st.just("field"), st.sampled_from([0, 2, 8, 16, 18, 20]), st.integers(0, 80)),
        st.tuples(st.just("channel"), st.integers(4, 7), st.integers(0, 3)),
        st.tuples(st.just("cut"), st.integers(0, 88), st.just(0)),
        st.tuples(st.just("insert"), st.integers(0, 56), st.integers(1, 16)),
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 40)),
    ),
    max_size=3,
)
"""Descriptors stay as they are: a wrong address ends the connection, as it should."""


def edited(chain: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    for kind, at, value in edits:
        if kind in ("set", "channel"):
            chain = chain[:at] + bytes([value]) + chain[at + 1 :]
        elif kind == "field":
            chain = chain[:at] + value.to_bytes(2, "little") + chain[at + 2 :]
        elif kind == "cut":
            chain = chain[: max(at, 1)]
        elif kind == "insert":
            chain = chain[:at] + bytes(value) + chain[at:]
        else:
            chain += bytes(value)
    return chain


def expected(client: TransformClient, request: Write, memory: Memory) -> int | None:
    """Return the peer's opinion of a WRITE. None: it names other memory, which would end the connection."""
    try:
        if decode_chain(request.chain).descriptors not in (memory.descriptors, memory.descriptors[:1], ()):
            return None
        (one,) = judge_write(request).transforms
        mirrored = replace(client.keys, decryption=client.keys.encryption)
        unprotect(bytes(memory.view[:PAGE]), mirrored, one, client.algorithm)
    except Refused as refused:
        return refused.status
    return Status.SUCCESS


@pytest.mark.parametrize(
    "offer", [Offer(encrypt=True), Offer(cipher=Cipher.AES_256_CCM, encrypt=True), Offer()], ids=name_of
)
def test_random_chains_are_judged_as_the_peer_judges_them(offer: Offer) -> None:
    """With algorithms that have a nonce: see ``test_signatures_without_a_nonce_may_come_with_one``."""
    seen: set[int] = set()

    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer)
        await client.log_on()
        for edits in collected:
            # Memory of its own: the edits may ask the server to invalidate it.
            data, memory, good = prepared(client)
            lab.path.write_bytes(UNTOUCHED)
            chain = edited(good.chain, edits)
            request = replace(good, chain=chain)
            wanted = expected(client, request, memory)
            if wanted is None:
                memory.registered.deregister()
                continue
            status = await outcome(client, request)
            seen.add(status)
            assert status == wanted, (edits, chain.hex())
            assert lab.path.read_bytes() == (data if status == Status.SUCCESS else UNTOUCHED)
            memory.registered.deregister()

    collected: list[list[tuple[str, int, int]]] = []

    @settings(max_examples=200, database=None, suppress_health_check=list(HealthCheck))
    @given(EDITS)
    def collect(edits: list[tuple[str, int, int]]) -> None:
        collected.append(edits)

    collect()
    play(work)
    wrong = Status.AUTH_TAG_MISMATCH if offer.encrypt else Status.INVALID_SIGNATURE
    assert seen == {Status.SUCCESS, Status.INVALID_PARAMETER, wrong}


# Negotiation


@pytest.mark.parametrize("rdma", [True, False], ids=["rdma", "tcp"])
@pytest.mark.parametrize(
    ("ids", "supported", "agreed"),
    [
        ((1, 2), (1, 2), (1, 2)),
        ((2, 1), (1, 2), (2, 1)),
        ((2, 7, 2, 1), (1, 2), (2, 1)),
        ((1, 2), (2,), (2,)),
        ((0,), (1, 2), (0,)),
        ((7,), (1, 2), (0,)),
        ((1,), (2,), (0,)),
        ((1, 2), (), None),
    ],
)
def test_negotiation(
    rdma: bool, ids: tuple[int, ...], supported: tuple[int, ...], agreed: tuple[int, ...] | None
) -> None:
    """Also over TCP: a client offers later channels what its first connection agreed upon (3.2.4.2.2.2)."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(ids=ids), rdma)
        await client.negotiate()
        (connection,) = lab.server.connection_list
        assert client.ids == connection.rdma_transform_ids == tuple(kind for kind in agreed or () if kind)
        reply = client.negotiated
        answered = decode_contexts(reply.message, *struct.unpack_from("<I", reply.body, 60), reply.body[6])
        assert answered.get(RDMA_TRANSFORM) == (None if agreed is None else encode_capabilities(agreed))

    play(work, Setup(ids=supported))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param([bytes(8)], id="TransformCount is 0"),
        pytest.param([b""], id="no data"),
        pytest.param([encode_capabilities((1, 2))[:7]], id="shorter than the structure"),
        pytest.param([encode_capabilities((1, 2))[:-1]], id="shorter than the list"),
        pytest.param([encode_capabilities((1,))] * 2, id="two contexts"),
    ],
)
def test_malformed_negotiation(data: list[bytes]) -> None:
    """MS-SMB2 3.3.5.4."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client()
        preauth = (PREAUTH, struct.pack("<HHH", 1, 32, 1) + bytes(32))
        reply = await client.negotiate_with([preauth, *((RDMA_TRANSFORM, one) for one in data)])
        assert reply.status == Status.INVALID_PARAMETER

    play(work)


def test_without_the_setting_the_context_is_ignored() -> None:
    """Even a malformed one (3.3.5.4)."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client()
        preauth = (PREAUTH, struct.pack("<HHH", 1, 32, 1) + bytes(32))
        assert (await client.negotiate_with([preauth, (RDMA_TRANSFORM, bytes(8))])).status == Status.SUCCESS

    play(work, Setup(ids=()))


# READ


@pytest.mark.parametrize("channel", [Channel.RDMA_TRANSFORM, 4])
def test_reads_have_no_transform_of_their_own(channel: int) -> None:
    """MS-SMB2 3.3.5.12: Channel is V1, V1_INVALIDATE or none."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(encrypt=True))
        await client.log_on()
        lab.path.write_bytes(UNTOUCHED)
        memory = client.memory(b"." * 16, writable=True)
        for info in (
            encode_descriptors(memory.descriptors),
            encode_chain(Chain(1, (Crypto(1, bytes(16), bytes(12)),), memory.descriptors)),
        ):
            reply = await client.call(READ, client.read_body(16, info, channel))
            assert reply.status == Status.INVALID_PARAMETER
        assert bytes(memory.view) == b"." * 16
        memory.registered.deregister()

    play(work)


def test_a_read_of_nothing_and_a_write_of_nothing_need_no_rdma() -> None:
    """MS-SMB2 3.3.5.12, 3.3.5.13: Length, or RemainingBytes, is not 0."""

    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(ids=None, encrypt=False))
        await client.log_on()
        client.signs = False
        memory = client.memory(b"." * 16, writable=True)
        info = encode_descriptors(memory.descriptors)
        assert (await client.call(READ, client.read_body(0, info))).status == Status.INVALID_PARAMETER
        body = client.write_body(info, 0, Channel.RDMA_V1)
        assert (await client.call(WRITE, body)).status == Status.INVALID_PARAMETER
        memory.registered.deregister()

    play(work)
