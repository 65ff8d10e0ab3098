"""Test how this project's client reads and writes at the peer as a server [MS-SMB2 3.2.4.6, 3.2.4.7, 3.2.5.11]."""

from __future__ import annotations

import os
from unittest import mock

import pytest

from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.negotiation import Offer as ClientOffer
from smb3server.crypto.encryption import SessionCipher
from tests.lab.tiers import each_with_one
from tests.lab.transform_lab import FABRICS
from tests.lab.transform_peer import Channel, Cipher, Signer
from tests.lab.transform_rules import Way as PeerWay
from tests.lab.transform_scene import Scene, play
from tests.lab.transform_server import Offer, TransformServer

SIZES = (4096, 4097, 65535, 1 << 20, (1 << 20) + 1, (3 << 20) + 17)
"""With and without a rest, and more than one request."""
PEERS = {
    Way.INLINE: PeerWay.MESSAGE,
    Way.RDMA: PeerWay.CLEAR,
    Way.RDMA_SIGNED: PeerWay.SIGNED,
    Way.RDMA_ENCRYPTED: PeerWay.ENCRYPTED,
}
OFFERS: dict[str, tuple[Offer, Way]] = {
    "clear": (Offer(), Way.RDMA),
    **{one.name: (Offer(signer=one, must_sign=True), Way.RDMA_SIGNED) for one in Signer},
    **{f"{one.name}, session": (Offer(cipher=one, session_encrypts=True), Way.RDMA_ENCRYPTED) for one in Cipher},
    **{
        f"{one.name}, share": (Offer(cipher=one, share_encrypts=True, must_sign=True), Way.RDMA_ENCRYPTED)
        for one in Cipher
    },
}


@pytest.mark.parametrize(("name", "fabric"), each_with_one(OFFERS, FABRICS))
def test_data_moves_by_rdma_as_it_must(name: str, fabric: str) -> None:
    offer, way = OFFERS[name]
    server = TransformServer(offer)

    async def work(made: Scene) -> None:
        tree, file = made.tree, made.file
        assert tree.choice.way is way
        for size in SIZES:
            data = os.urandom(size)
            assert await tree.write(file, 5, data) == size
            assert server.content[5 : 5 + size] == data
            assert await tree.read(file, 5, size) == data
        # The last byte of a request's worth and one is a request of its own, and too small for RDMA.
        alone = {way: sum(SIZES) - 18, Way.INLINE: 18}
        assert made.client.payloads.written == made.client.payloads.read == alone
        assert await tree.write(file, 0, b"small") == 5
        assert await tree.read(file, 0, 5) == b"small"
        assert await tree.read(file, 1 << 30, 8192) == b""

    play(server, work, fabric)
    assert not server.refused
    assert set(server.writes) == {answer.way for answer in server.reads} == {PEERS[way], PeerWay.MESSAGE}


@pytest.mark.parametrize(
    ("theirs", "ours", "missing"),
    [
        (Offer(ids=(), must_sign=True), ClientOffer(), "signing"),
        (Offer(ids=(1,), must_sign=True), ClientOffer(), "signing"),
        (Offer(must_sign=True), ClientOffer(rdma_transforms=(1,)), "signing"),
        (Offer(must_sign=True), ClientOffer(rdma_transforms=()), "signing"),
        (Offer(ids=(2,), session_encrypts=True), ClientOffer(), "encryption"),
        (Offer(ids=(2,), share_encrypts=True, must_sign=True), ClientOffer(), "encryption"),
        (Offer(share_encrypts=True), ClientOffer(rdma_transforms=(2,)), "encryption"),
    ],
)
def test_without_its_transform_data_stays_in_messages(theirs: Offer, ours: ClientOffer, missing: str) -> None:
    server = TransformServer(theirs)

    async def work(made: Scene) -> None:
        data = os.urandom(100_000)
        assert await made.tree.write(made.file, 0, data) == len(data)
        assert await made.tree.read(made.file, 0, len(data)) == data
        assert made.tree.choice.way is Way.INLINE
        assert f"the RDMA transform for {missing} was not negotiated" in made.tree.choice.why_inline
        assert made.client.payloads.read == made.client.payloads.written == {Way.INLINE: len(data)}

    play(server, work, offer=ours)
    assert not server.refused
    assert set(server.writes) == {answer.way for answer in server.reads} == {PeerWay.MESSAGE}


@pytest.mark.parametrize("offer", [Offer(ids=(1,), session_encrypts=True), Offer(ids=(2,), must_sign=True)], ids=repr)
def test_one_transform_suffices_where_no_other_is_needed(offer: Offer) -> None:
    server = TransformServer(offer, bytearray(os.urandom(8192)))

    async def work(made: Scene) -> None:
        assert await made.tree.read(made.file, 0, 8192) == server.content
        assert made.client.payloads.read == {made.tree.choice.way: 8192}
        assert made.tree.choice.way.transform in offer.ids

    play(server, work)


@pytest.mark.parametrize("name", ["AES_GMAC", "AES_256_GCM, session", "AES_128_CCM, share"])
def test_no_nonce_is_used_twice(name: str) -> None:
    """Each WRITE has a nonce of its own [MS-SMB2 2.2.43.1]."""
    server = TransformServer(OFFERS[name][0])

    async def work(made: Scene) -> None:
        for _ in range(20):
            await made.tree.write(made.file, 0, bytes(4096))

    play(server, work)
    nonces = [chain.transforms[0].nonce for chain in server.chains]
    assert len(set(nonces)) == 20
    if name == "AES_GMAC":
        # The same key signs messages, whose nonces never have the top bit set, and what the server sends, whose nonces
        # have the lowest [MS-SMB2 3.1.4.1].
        assert {nonce[8:] for nonce in nonces} == {bytes([0, 0, 0, 0x80])}


def test_the_tokens_of_pooled_buffers_are_kept() -> None:
    """Ask for no remote invalidation: the next request uses the same buffer and token."""
    server = TransformServer(Offer(must_sign=True))

    async def work(made: Scene) -> None:
        for _ in range(3):
            await made.tree.write(made.file, 0, bytes(65536))
            await made.tree.read(made.file, 0, 65536)
        assert made.client.exposed is not None
        assert made.client.exposed.registrations == 2

    play(server, work)
    assert {chain.channel for chain in server.chains} == {Channel.RDMA_V1}
    assert len({chain.descriptors for chain in server.chains}) == 1


def test_clear_data_is_never_where_the_server_can_read_it() -> None:
    """Look at the exposed buffer at the moment when the data has its tag."""
    marker = b"not for everybody! " * 1000
    server = TransformServer(Offer(session_encrypts=True))

    async def work(made: Scene) -> None:
        exposed, cipher = made.client.exposed, made.tree.session.cipher
        assert exposed is not None and cipher is not None
        buffer = exposed.take(len(marker), writable=False)
        exposed.give_back(buffer)
        seen: list[bytes] = []

        def encrypt(payload: memoryview, nonce: bytes) -> bytes:
            seen.append(bytes(buffer.view))
            return SessionCipher.encrypt_payload(cipher, payload, nonce)

        with mock.patch.object(cipher, "encrypt_payload", encrypt):
            assert await made.tree.write(made.file, 0, marker) == len(marker)
        assert exposed.registrations == 1
        assert len(seen) == 1
        assert marker[:16] not in seen[0]

    play(server, work)
    assert server.content == marker
