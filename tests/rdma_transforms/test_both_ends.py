"""Test this project's client against this project's server: every combination of what both ask for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import Client, ClientSession, Tree, open_rdma
from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.session import BoundSession
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.state.share import Share
from tests.lab.transform_lab import FABRICS, Setup, TransformLab, play
from tests.lab.transform_rules import Way as PeerWay
from tests.lab.transform_rules import way_of

SIZES = (4096, 65537, (1 << 20) + 5000)
WAYS = {
    PeerWay.MESSAGE: Way.INLINE,
    PeerWay.CLEAR: Way.RDMA,
    PeerWay.SIGNED: Way.RDMA_SIGNED,
    PeerWay.ENCRYPTED: Way.RDMA_ENCRYPTED,
}


async def logged_on(
    lab: TransformLab, offer: Offer | None = None, client_guid: bytes | None = None, **wishes: bool
) -> ClientSession:
    client = await connected(lab, offer, client_guid)
    return await client.log_on("u", "pw", **wishes)


async def connected(lab: TransformLab, offer: Offer | None = None, client_guid: bytes | None = None) -> Client:
    transport = await open_rdma(lab.provider, "127.0.0.1", lab.port)
    return await Client.connect(transport, offer=offer, client_guid=client_guid)


async def moves(tree: Tree, way: Way, path: Path) -> None:
    """Write and read, and check that all of it went ``way``."""
    assert tree.choice.way is way
    payloads = tree.client.payloads
    payloads.read.clear()
    payloads.written.clear()
    before = tree.client.transport.traffic
    file = await tree.create("f", READ_WRITE, 3)
    for size in SIZES:
        data = os.urandom(size)
        assert await tree.write(file, 7, data) == size
        assert path.read_bytes()[7 : 7 + size] == data
        assert await tree.read(file, 7, size) == data
    await tree.close(file)
    assert payloads.read == payloads.written == {way: sum(SIZES)}
    after = tree.client.transport.traffic
    carried = after.inline_bytes_sent + after.inline_bytes_received
    carried -= before.inline_bytes_sent + before.inline_bytes_received
    assert (carried > 2 * sum(SIZES)) is (way is Way.INLINE)


@pytest.mark.parametrize("ours", [(), (1,), (2,), (1, 2)], ids=lambda ids: f"client{ids}")
@pytest.mark.parametrize("theirs", [(), (1,), (2,), (2, 1)], ids=lambda ids: f"server{ids}")
@pytest.mark.parametrize("need", ["clear", "sign", "must sign", "encrypt", "session", "share", "share and must sign"])
def test_every_combination(need: str, theirs: tuple[int, ...], ours: tuple[int, ...]) -> None:
    """Go by RDMA with the transform that is needed if both have it, and otherwise in messages [MS-SMB2 3.2.4.7]."""
    encrypted, signed = need in ("encrypt", "session") or "share" in need, "sign" in need
    common = tuple(set(ours) & set(theirs))
    way = WAYS[way_of(encrypted, signed, common)]
    setup = Setup(
        ids=theirs, must_sign="must sign" in need, session_encrypts=need == "session", share_encrypts="share" in need
    )

    async def work(lab: TransformLab) -> None:
        offer = Offer(rdma_transforms=ours)
        session = await logged_on(lab, offer, sign=need == "sign", encrypt=need == "encrypt")
        assert session.client.negotiated.rdma_transforms == set(common)
        await moves(await session.tree_connect("share"), way, lab.path)
        await session.client.close()

    play(work, setup)


ALGORITHMS = [*(one for one in Cipher if one), *SigningAlgorithm]


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.name)
def test_every_algorithm(algorithm: Cipher | SigningAlgorithm, fabric: str) -> None:
    encrypts = isinstance(algorithm, Cipher)
    offer = Offer(ciphers=(algorithm,)) if encrypts else Offer(signing_algorithms=(algorithm,))

    async def work(lab: TransformLab) -> None:
        session = await logged_on(lab, offer)
        tree = await session.tree_connect("share")
        await moves(tree, Way.RDMA_ENCRYPTED if encrypts else Way.RDMA_SIGNED, lab.path)
        await session.client.close()

    play(work, Setup(fabric=fabric, must_sign=not encrypts, session_encrypts=encrypts))


@pytest.mark.parametrize("encrypts", [False, True], ids=["signed", "encrypted"])
@pytest.mark.parametrize("first", [True, False], ids=["first without", "second without"])
def test_one_channel_without_transforms(first: bool, encrypts: bool) -> None:
    """Let each channel move data as what it negotiated says; both see the same file [MS-SMB2 3.2.1.2]."""
    protected = Way.RDMA_ENCRYPTED if encrypts else Way.RDMA_SIGNED
    without = Offer(rdma_transforms=())

    async def work(lab: TransformLab) -> None:
        session = await logged_on(lab, without if first else None)
        other = await connected(lab, None if first else without, session.client.client_guid)
        bound = await BoundSession.bind(session, other, "u", "pw")
        tree = await session.tree_connect("share")
        ways = (Way.INLINE, protected) if first else (protected, Way.INLINE)
        await moves(tree, ways[0], lab.path)
        await moves(tree.on(bound), ways[1], lab.path)
        await moves(tree, ways[0], lab.path)
        await other.close()
        await session.client.close()

    play(work, Setup(must_sign=not encrypts, session_encrypts=encrypts))


@pytest.mark.parametrize("encrypts", [False, True], ids=["signed", "encrypted"])
def test_two_channels_at_once(encrypts: bool) -> None:
    """Each channel signs with a key of its own; both encrypt with the session's, and share its nonces."""

    async def work(lab: TransformLab) -> None:
        session = await logged_on(lab)
        other = await connected(lab, None, session.client.client_guid)
        bound = await BoundSession.bind(session, other, "u", "pw")
        trees = [await session.tree_connect("share")]
        trees.append(trees[0].on(bound))
        file = await trees[0].create("f", READ_WRITE, 3)
        blocks = [os.urandom(65536) for _ in range(16)]
        await asyncio.gather(*(trees[n % 2].write(file, n << 16, block) for n, block in enumerate(blocks)))
        found = await asyncio.gather(*(trees[n % 2].read(file, n << 16, 65536) for n in range(len(blocks))))
        assert found == blocks
        for tree in trees:
            assert tree.client.payloads.read == {tree.choice.way: 8 << 16}
            assert tree.choice.way.transform
        await other.close()
        await session.client.close()

    play(work, Setup(must_sign=not encrypts, session_encrypts=encrypts))


def test_encrypted_and_clear_trees_of_one_session() -> None:
    """Choose the way for each tree: the same session uses a share that encrypts, and one that does not."""

    async def work(lab: TransformLab) -> None:
        lab.server.add_share(Share("clear", backend=LocalBackend(lab.path.parent)))
        session = await logged_on(lab)
        await moves(await session.tree_connect("share"), Way.RDMA_ENCRYPTED, lab.path)
        await moves(await session.tree_connect("clear"), Way.RDMA, lab.path)
        await session.client.close()

    play(work, Setup(share_encrypts=True))
