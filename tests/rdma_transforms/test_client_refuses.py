"""Test that no wrong byte of a server that breaks a rule reaches the caller of this project's client."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest import mock

import pytest

from smb3server.client.protocol import ServerError
from smb3server.client.protocol.messages import Way
from smb3server.crypto.signing import Signer as OurSigner
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost, ProtocolError
from tests.lab import transform_peer as peer
from tests.lab import transform_rules as rules
from tests.lab.transform_lab import FABRICS
from tests.lab.transform_peer import Chain, Cipher, Crypto, Keys, Kind, Signer
from tests.lab.transform_scene import Scene, play
from tests.lab.transform_server import Answer, Offer, TransformServer

SIZE = 8192
ENCRYPTS, SIGNS = Offer(session_encrypts=True), Offer(must_sign=True)
OFFERS = {Kind.ENCRYPTION: ENCRYPTS, Kind.SIGNING: SIGNS}
BAD, TAG, SIGNATURE = NtStatus.INVALID_NETWORK_RESPONSE, NtStatus.AUTH_TAG_MISMATCH, NtStatus.INVALID_SIGNATURE
LOST = 0
"""In place of a status: the connection ends."""


@dataclass(frozen=True)
class Row:
    """Hold one way to break the answer to a READ, and what becomes of the request that is encrypted or signed."""

    name: str
    encrypted: int | None
    """None: the row is not about this one."""
    signed: int | None
    spoil: Callable[[Answer], Answer]


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def crypto(change: Callable[[Crypto], Crypto]) -> Callable[[Answer], Answer]:
    """Change the transform of an answer, with lengths that fit it."""

    def spoil(answer: Answer) -> Answer:
        (one,) = peer.decode_chain(answer.buffer).transforms
        return replace(answer, buffer=peer.encode_chain(Chain(0, (change(one),))))

    return spoil


def with_another_key(answer: Answer) -> Answer:
    """Protect zeros with keys that nobody has."""
    kind = peer.decode_chain(answer.buffer).transforms[0].kind
    wrong = Keys(bytes(16), bytes(16), bytes(16))
    algorithm = Cipher.AES_128_GCM if kind == Kind.ENCRYPTION else Signer.AES_GMAC
    placed, one = peer.protect(bytes(SIZE), wrong, Kind(kind), algorithm, bytes(12))
    return replace(answer, placed=placed, buffer=peer.encode_chain(Chain(0, (one,))))


ROWS = (
    Row("a bit of the data", TAG, SIGNATURE, lambda a: replace(a, placed=flipped(a.placed, 4000))),
    Row("data one byte too far", TAG, SIGNATURE, lambda a: replace(a, placed=b"\0" + a.placed[:-1])),
    # One byte of cipher text may be what the buffer has anyway.
    Row("data without its last 8 bytes", TAG, SIGNATURE, lambda a: replace(a, placed=a.placed[:-8])),
    Row("no data", TAG, SIGNATURE, lambda a: replace(a, placed=b"")),
    Row("a bit of the signature", TAG, SIGNATURE, crypto(lambda c: replace(c, signature=flipped(c.signature, 15)))),
    Row("a signature of 15 bytes", BAD, SIGNATURE, crypto(lambda c: replace(c, signature=c.signature[:15]))),
    Row("a signature of 4 bytes", BAD, SIGNATURE, crypto(lambda c: replace(c, signature=c.signature[:4]))),
    Row("no signature", BAD, SIGNATURE, crypto(lambda c: replace(c, signature=b""))),
    Row("a signature of 17 bytes", BAD, SIGNATURE, crypto(lambda c: replace(c, signature=c.signature + b"\0"))),
    Row("a bit of the nonce", TAG, SIGNATURE, crypto(lambda c: replace(c, nonce=flipped(c.nonce, 0)))),
    Row("a nonce of 11 bytes", BAD, SIGNATURE, crypto(lambda c: replace(c, nonce=c.nonce[:11]))),
    Row("a nonce of 13 bytes", BAD, SIGNATURE, crypto(lambda c: replace(c, nonce=c.nonce + b"\0"))),
    Row("no nonce", BAD, SIGNATURE, crypto(lambda c: replace(c, nonce=b""))),
    Row("another key", TAG, SIGNATURE, with_another_key),
    Row("the other kind", BAD, BAD, crypto(lambda c: replace(c, kind=3 - c.kind))),
    Row("DataRemaining beyond the request", BAD, BAD, lambda a: replace(a, remaining=SIZE + 1)),
    Row("DataRemaining of 4 GiB", BAD, BAD, lambda a: replace(a, remaining=0xFFFFFFFF)),
    Row("DataRemaining too small", TAG, SIGNATURE, lambda a: replace(a, remaining=SIZE - 1)),
    Row("DataRemaining 0", TAG, SIGNATURE, lambda a: replace(a, remaining=0)),
    Row("no flag", BAD, BAD, lambda a: replace(a, flags=0)),
    Row("no chain", BAD, BAD, lambda a: replace(a, flags=0, buffer=b"", placed=bytes(SIZE))),
    Row("an empty chain", BAD, BAD, lambda a: replace(a, buffer=b"")),
    Row("DataLength beyond the message", BAD, BAD, lambda a: replace(a, data_length=5000)),
    Row("DataLength too small", BAD, BAD, lambda a: replace(a, data_length=30)),
    Row("DataOffset in the header", BAD, BAD, lambda a: replace(a, data_offset=8)),
    Row("DataOffset beyond the message", BAD, BAD, lambda a: replace(a, data_offset=255)),
    Row("DataOffset one too far", BAD, BAD, lambda a: replace(a, data_offset=81, buffer=a.buffer + b"\0")),
    Row("response signed, not encrypted", BAD, None, lambda a: replace(a, encrypted=False, signed=True)),
    Row("response encrypted, not signed", None, BAD, lambda a: replace(a, encrypted=True, signed=False)),
    Row("response neither signed nor encrypted", LOST, LOST, lambda a: replace(a, encrypted=False, signed=False)),
)


def outcome_of(row: Row, kind: Kind) -> int | None:
    return row.encrypted if kind is Kind.ENCRYPTION else row.signed


def broken(change: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
    """Spoil the first answer only."""
    first = [change]
    return lambda answer: first.pop()(answer) if first else answer


def refuses(offer: Offer, spoil: Callable[[Answer], Answer], expected: int, fabric: str = "loopback") -> None:
    """Check what the client makes of a spoilt READ, and that it can read right behind it."""
    server = TransformServer(offer, bytearray(os.urandom(SIZE)), broken(spoil))

    async def work(made: Scene) -> None:
        if expected == LOST:
            with pytest.raises(ConnectionLost):
                await made.tree.read(made.file, 0, SIZE)
            return
        with pytest.raises(StatusError) as caught:
            await made.tree.read(made.file, 0, SIZE)
        assert not isinstance(caught.value, ServerError)
        assert caught.value.status == expected
        assert not made.client.payloads.read
        assert await made.tree.read(made.file, 0, SIZE) == server.content

    play(server, work, fabric)
    assert not server.refused


CASES = [(row, kind) for row in ROWS for kind in Kind if outcome_of(row, kind) is not None]


@pytest.mark.parametrize(("row", "kind"), CASES, ids=[f"{row.name}-{kind.name}" for row, kind in CASES])
def test_each_row(row: Row, kind: Kind) -> None:
    refuses(OFFERS[kind], row.spoil, outcome_of(row, kind) or LOST)


@pytest.mark.parametrize("fabric", sorted(set(FABRICS) - {"loopback"}))
@pytest.mark.parametrize("row", ROWS[:6], ids=lambda row: row.name)
def test_wrong_data_over_networks(row: Row, fabric: str) -> None:
    refuses(ENCRYPTS, row.spoil, row.encrypted or LOST, fabric)


@pytest.mark.parametrize("cipher", Cipher, ids=lambda one: one.name)
def test_each_cipher_finds_a_changed_bit(cipher: Cipher) -> None:
    refuses(replace(ENCRYPTS, cipher=cipher), ROWS[0].spoil, TAG)


@pytest.mark.parametrize("signer", Signer, ids=lambda one: one.name)
def test_each_signing_algorithm_finds_a_changed_bit(signer: Signer) -> None:
    refuses(replace(SIGNS, signer=signer), ROWS[0].spoil, SIGNATURE)


JUDGED = [rule for rule in rules.READ_RULES if rule.name not in ("connection is not RDMA", "no transform ids")]


@pytest.mark.parametrize("rule", JUDGED, ids=lambda rule: rule.name)
def test_each_rule_of_the_peer(rule: rules.Rule[rules.Read]) -> None:
    """Break what the peer's own judge refuses in a chain; the response travels as it must [MS-SMB2 3.2.5.11]."""
    # Chains without a nonce, as those that the rules were written for, have no padding.
    offer = replace(OFFERS[rule.kind], signer=Signer.AES_CMAC)

    def spoil(answer: Answer) -> Answer:
        found = rule.break_it(rules.Read(answer.buffer, answer.encrypted, remaining=answer.remaining))
        signed = answer.signed or answer.encrypted is not found.encrypted
        return replace(answer, buffer=found.chain, encrypted=found.encrypted, signed=signed)

    refuses(offer, spoil, rule.status)


@pytest.mark.parametrize("fabric", ["tcp", "loopback"])
def test_a_transform_for_data_in_the_message(fabric: str) -> None:
    """Refuse the flag where no data goes by RDMA, over TCP and for small data over SMB Direct [MS-SMB2 3.2.5.11]."""
    chain = rules.good_chain(Kind.SIGNING)
    server = TransformServer(SIGNS, bytearray(os.urandom(SIZE)))
    server.spoil = broken(lambda answer: replace(answer, flags=1, buffer=chain))

    async def work(made: Scene) -> None:
        with pytest.raises(StatusError) as caught:
            await made.tree.read(made.file, 0, 1000)
        assert caught.value.status == BAD
        assert await made.tree.read(made.file, 0, 1000) == server.content[:1000]

    play(server, work, fabric)


@pytest.mark.parametrize("ids", [(), rules.BOTH], ids=["not negotiated", "negotiated"])
def test_a_transform_for_data_that_needs_none(ids: tuple[int, ...]) -> None:
    """Refuse a transform in the response to a request that was neither signed nor encrypted [MS-SMB2 3.3.5.12]."""

    def spoil(answer: Answer) -> Answer:
        assert answer.way is rules.Way.CLEAR
        return replace(answer, flags=1, buffer=rules.good_chain(Kind.SIGNING))

    refuses(Offer(ids=ids), spoil, BAD)


def test_what_the_server_writes_after_the_signature_was_verified() -> None:
    """Return what was verified: the server still has access to the buffer, and so may others have."""
    server = TransformServer(SIGNS, bytearray(os.urandom(SIZE)))

    async def work(made: Scene) -> None:
        signer, exposed = made.tree.session.signer, made.client.exposed
        assert signer is not None and exposed is not None
        buffer = exposed.take(SIZE, writable=True)
        exposed.give_back(buffer)

        def verify(payload: memoryview, nonce: bytes, signature: bytes) -> bool:
            good = OurSigner.verify_payload(signer, payload, nonce, signature)
            buffer.view[:SIZE] = bytes(SIZE)
            return good

        with mock.patch.object(signer, "verify_payload", verify):
            assert await made.tree.read(made.file, 0, SIZE) == server.content
        assert bytes(buffer.view[:SIZE]) == bytes(SIZE)
        assert exposed.registrations == 1

    play(server, work)


GOOD = peer.encode_capabilities([1, 2])


@pytest.mark.parametrize(
    "contexts",
    [
        [GOOD, GOOD],
        [peer.encode_capabilities([])],
        [peer.encode_capabilities([1, 2, 2])],
        [peer.encode_capabilities([3])],
        [peer.encode_capabilities([1, 0])],
        [GOOD[:-1]],
        [GOOD[:7]],
        [b""],
    ],
    ids=["twice", "none", "more than offered", "not offered", "NONE and another", "cut off", "too short", "empty"],
)
def test_each_rule_of_negotiation(contexts: list[bytes]) -> None:
    """Fail the negotiation [MS-SMB2 3.2.5.2]."""

    async def work(made: Scene) -> None:
        raise AssertionError("the client negotiated")

    with pytest.raises(ProtocolError):
        play(TransformServer(SIGNS, spoil_ids=lambda ids: contexts), work)


def test_a_server_that_has_none_says_so() -> None:
    """Take NONE alone for what it says, although the client does not offer it [MS-SMB2 3.3.5.4]."""

    async def work(made: Scene) -> None:
        assert not made.client.negotiated.rdma_transforms
        assert made.tree.choice.way is Way.INLINE

    play(TransformServer(SIGNS, spoil_ids=lambda ids: [peer.encode_capabilities([0])]), work)
