"""Hold the rules by which each end refuses an RDMA transform, as data, with a judge of its own for each end.

Like ``transform_peer`` it is written from the text and imports no code of the project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from tests.lab.transform_peer import (
    Chain,
    Cipher,
    Crypto,
    Descriptor,
    Kind,
    Refused,
    Status,
    TransformId,
    decode_chain,
    encode_chain,
    nonce_length,
)

BOTH = (int(TransformId.ENCRYPTION), int(TransformId.SIGNING))


class Way(Enum):
    """Name how the data of a READ or WRITE may travel."""

    CLEAR = "by RDMA, as it is"
    SIGNED = "by RDMA, signed"
    ENCRYPTED = "by RDMA, encrypted"
    MESSAGE = "in the message, which is signed or encrypted itself"


@dataclass(frozen=True)
class Need:
    """Hold what a session, a share and a connection ask for, and the way that follows."""

    session_encrypts: bool
    share_encrypts: bool
    must_sign: bool
    ids: tuple[int, ...]
    way: Way


def way_of(encrypted: bool, signed: bool, ids: tuple[int, ...]) -> Way:
    """Return the way of the data by how its request travels [MS-SMB2 3.2.4.7, 3.3.5.12]."""
    # open: 3.2.4.6 and 3.2.4.7 keep signed and encrypted sessions off RDMA altogether, which would leave the transforms
    # to shares that encrypt. 3.2.4.7 also says "Otherwise SIGNING", though 3.3.5.13 refuses it in an unsigned request.
    # suite: reads and writes by RDMA in signed and in encrypted sessions. So this goes by how the request travels.
    # open: by the letter of 3.3.5.12 a server that lacks the id it needs writes the data clear. Here it never does.
    if encrypted:
        return Way.ENCRYPTED if TransformId.ENCRYPTION in ids else Way.MESSAGE
    if signed:
        return Way.SIGNED if TransformId.SIGNING in ids else Way.MESSAGE
    return Way.CLEAR


def way_of_need(need: Need) -> Way:
    """Derive how the request travels, which is encrypted or else signed, and its way [MS-SMB2 3.2.4.1.1, 3.2.4.1.8]."""
    encrypted = need.session_encrypts or need.share_encrypts
    return way_of(encrypted, need.must_sign and not encrypted, need.ids)


NEEDS = (
    Need(False, False, False, (), Way.CLEAR),
    Need(False, False, False, BOTH, Way.CLEAR),
    Need(False, False, True, BOTH, Way.SIGNED),
    Need(False, False, True, (2,), Way.SIGNED),
    Need(False, False, True, (1,), Way.MESSAGE),
    Need(False, False, True, (), Way.MESSAGE),
    Need(False, False, True, (0,), Way.MESSAGE),
    Need(True, False, False, BOTH, Way.ENCRYPTED),
    Need(False, True, False, BOTH, Way.ENCRYPTED),
    Need(False, True, True, BOTH, Way.ENCRYPTED),
    Need(True, True, True, (1,), Way.ENCRYPTED),
    Need(False, True, True, (2,), Way.MESSAGE),
    Need(True, False, False, (), Way.MESSAGE),
    Need(True, True, False, (0,), Way.MESSAGE),
)


@dataclass(frozen=True)
class Write:
    """Describe a WRITE request with SMB2_CHANNEL_RDMA_TRANSFORM, and what its server knows [MS-SMB2 3.3.5.13]."""

    chain: bytes
    encrypted: bool
    signed: bool
    ids: tuple[int, ...] = BOTH
    cipher: Cipher = Cipher.AES_128_GCM
    rdma: bool = True
    remaining: int = 4096
    max_write: int = 1 << 20
    length: int = 0
    data_offset: int = 0


@dataclass(frozen=True)
class Read:
    """Describe a READ response that says RESPONSE_RDMA_TRANSFORM, and what its client knows [MS-SMB2 3.2.5.11]."""

    chain: bytes
    encrypted: bool
    ids: tuple[int, ...] = BOTH
    cipher: Cipher = Cipher.AES_128_GCM
    rdma: bool = True
    remaining: int = 4096


def judge_write(request: Write) -> Chain:
    """Return the chain of a WRITE, or refuse it before any data moves [MS-SMB2 3.3.5.13]."""
    ids, wrong = request.ids, Status.INVALID_PARAMETER
    if not request.rdma:
        raise Refused(wrong, "the connection is not RDMA")
    if request.length or request.data_offset or not request.remaining or not request.chain:
        raise Refused(wrong, "Length, DataOffset, RemainingBytes or the length of the channel")
    if not set(ids) - {TransformId.NONE}:
        raise Refused(wrong, "no transform was negotiated")
    chain = decode_chain(request.chain)
    if len(chain.transforms) != 1:
        raise Refused(wrong, "more than one transform")
    one = chain.transforms[0]
    if one.kind not in ids:
        raise Refused(wrong, "the transform was not negotiated")
    # open: by the letter SIGNING passes in an encrypted request that is signed as well, and its data moves clear.
    # 3.2.5.11 refuses the like of it in a READ. suite: an encrypted session that signs its payload gets this status.
    fits = request.encrypted if one.kind == Kind.ENCRYPTION else request.signed and not request.encrypted
    if not fits:
        raise Refused(wrong, "the transform does not fit how the request travels")
    if request.remaining > request.max_write:
        raise Refused(wrong, "RemainingBytes is more than MaxWriteSize")
    # open: no rule names a WRITE whose inner Channel is NONE: it has no first descriptor with a length.
    if not chain.descriptors or not chain.descriptors[0].length:
        raise Refused(wrong, "no descriptor, or the first is empty")
    if sum(one.length for one in chain.descriptors) < request.remaining:
        raise Refused(wrong, "the descriptors hold less than RemainingBytes")
    _judge_lengths(one, request.cipher, Status.AUTH_TAG_MISMATCH)
    return chain


def judge_read(response: Read) -> Crypto:
    """Return the transform of a READ response, or refuse it before its data is used [MS-SMB2 3.2.5.11]."""
    ids, wrong = response.ids, Status.INVALID_NETWORK_RESPONSE
    if not response.rdma:
        raise Refused(wrong, "the connection is not RDMA")
    if not set(ids) - {TransformId.NONE}:
        raise Refused(wrong, "no transform was negotiated")
    try:
        chain = decode_chain(response.chain)
    except Refused as error:
        raise Refused(wrong, error.rule) from error
    if len(chain.transforms) != 1:
        raise Refused(wrong, "more than one transform")
    one = chain.transforms[0]
    # open: by the letter a client that negotiated SIGNING refuses each response without a SIGNING transform, so each
    # encrypted one, which may have no second. The rule can only mean responses that are not encrypted.
    # suite: negotiates one id at a time, and so never comes here.
    if one.kind != (Kind.ENCRYPTION if response.encrypted else Kind.SIGNING):
        raise Refused(wrong, "the transform does not fit how the response travels")
    if one.kind not in ids:
        raise Refused(wrong, "the transform was not negotiated")
    _judge_lengths(one, response.cipher, wrong)
    return one


def _judge_lengths(one: Crypto, cipher: Cipher, status: Status) -> None:
    if one.kind != Kind.ENCRYPTION:
        return
    if len(one.signature) > 16 or len(one.nonce) != nonce_length(Kind.ENCRYPTION, cipher):
        raise Refused(status, "SignatureLength or NonceLength")


T = TypeVar("T", Write, Read)


@dataclass(frozen=True)
class Rule(Generic[T]):
    """Hold a rule, its section, the answer to who breaks it, and how to break it in a good message of one kind."""

    name: str
    section: str
    status: Status
    kind: Kind
    break_it: Callable[[T], T]


def _edited(data: bytes, edit: Callable[[Chain], Chain]) -> bytes:
    return encode_chain(edit(decode_chain(data)))


def _twice(other: int | None = None) -> Callable[[Chain], Chain]:
    """Put a second transform behind the first, of its own kind or another."""

    def edit(chain: Chain) -> Chain:
        (one,) = chain.transforms
        return replace(chain, transforms=(one, one if other is None else replace(one, kind=other)))

    return edit


def _lengths(signature: int = 0, nonce: int = 0) -> Callable[[Chain], Chain]:
    """Make the signature or the nonce longer or shorter, with lengths that say so."""

    def fit(data: bytes, more: int) -> bytes:
        return data + bytes(more) if more > 0 else data[: len(data) + more]

    def edit(chain: Chain) -> Chain:
        (one,) = chain.transforms
        return replace(
            chain, transforms=(replace(one, signature=fit(one.signature, signature), nonce=fit(one.nonce, nonce)),)
        )

    return edit


def _first(length: int) -> Callable[[Chain], Chain]:
    return lambda chain: replace(
        chain, descriptors=(replace(chain.descriptors[0], length=length), *chain.descriptors[1:])
    )


def _patch(data: bytes, at: int, value: int) -> bytes:
    """Set one 16-bit field of a chain."""
    return data[:at] + value.to_bytes(2, "little") + data[at + 2 :]


def _unaligned(chain: bytes) -> bytes:
    """Move the descriptors of a chain 4 bytes on, and say so."""
    at = int.from_bytes(chain[:2], "little")
    return _patch(chain[:at] + bytes(4) + chain[at:], 0, at + 4)


def _unpadded(chain: bytes) -> bytes:
    """Let the descriptors follow a GCM transform of 36 bytes at once, and say so."""
    return _patch(chain[:52] + chain[56:], OFFSET, 52)


OFFSET, LENGTH, CHANNEL, COUNT, KIND = 0, 2, 4, 8, 16
E, S, BAD, TAG = Kind.ENCRYPTION, Kind.SIGNING, Status.INVALID_PARAMETER, Status.AUTH_TAG_MISMATCH
W = "3.3.5.13"

WRITE_RULES: tuple[Rule[Write], ...] = (
    Rule("connection is not RDMA", W, BAD, E, lambda w: replace(w, rdma=False)),
    Rule("Length is not 0", W, BAD, E, lambda w: replace(w, length=1)),
    Rule("DataOffset is not 0", W, BAD, E, lambda w: replace(w, data_offset=0x70)),
    Rule("RemainingBytes is 0", W, BAD, E, lambda w: replace(w, remaining=0)),
    Rule("WriteChannelInfoLength is 0", W, BAD, E, lambda w: replace(w, chain=b"")),
    Rule("no transform ids", W, BAD, E, lambda w: replace(w, ids=())),
    Rule("no transform ids, signing", W, BAD, S, lambda w: replace(w, ids=())),
    Rule("shorter than the structure", W, BAD, E, lambda w: replace(w, chain=w.chain[:15])),
    Rule("TransformCount is 0", W, BAD, E, lambda w: replace(w, chain=_patch(w.chain, COUNT, 0))),
    Rule("TransformCount is 0, signing", W, BAD, S, lambda w: replace(w, chain=_patch(w.chain, COUNT, 0))),
    Rule("ENCRYPTION not negotiated", W, BAD, E, lambda w: replace(w, ids=(2,))),
    Rule("SIGNING not negotiated", W, BAD, S, lambda w: replace(w, ids=(1,))),
    Rule("request is not encrypted", W, BAD, E, lambda w: replace(w, encrypted=False)),
    Rule("request is not signed", W, BAD, S, lambda w: replace(w, signed=False)),
    Rule("two of ENCRYPTION", W, BAD, E, lambda w: replace(w, chain=_edited(w.chain, _twice()))),
    Rule("two of SIGNING", W, BAD, S, lambda w: replace(w, chain=_edited(w.chain, _twice()))),
    Rule("ENCRYPTION and SIGNING", W, BAD, E, lambda w: replace(w, chain=_edited(w.chain, _twice(S)))),
    Rule("SIGNING in an encrypted request", W, BAD, S, lambda w: replace(w, encrypted=True)),
    Rule("no padding before descriptors", W, BAD, E, lambda w: replace(w, chain=_unpadded(w.chain))),
    Rule("descriptors not aligned", W, BAD, E, lambda w: replace(w, chain=_unaligned(w.chain))),
    Rule("descriptors begin too early", W, BAD, E, lambda w: replace(w, chain=_patch(w.chain, OFFSET, 16))),
    Rule("unknown transform", W, BAD, E, lambda w: replace(w, chain=_patch(w.chain, KIND, 3))),
    Rule("unknown transform 0", W, BAD, S, lambda w: replace(w, chain=_patch(w.chain, KIND, 0))),
    Rule("RemainingBytes above MaxWriteSize", W, BAD, E, lambda w: replace(w, max_write=w.remaining - 1)),
    Rule("first descriptor is empty", W, BAD, E, lambda w: replace(w, chain=_edited(w.chain, _first(0)))),
    Rule("descriptors hold too little", W, BAD, S, lambda w: replace(w, remaining=8193)),
    Rule("SignatureLength above 16", W, TAG, E, lambda w: replace(w, chain=_edited(w.chain, _lengths(1)))),
    Rule("NonceLength too long", W, TAG, E, lambda w: replace(w, chain=_edited(w.chain, _lengths(0, 1)))),
    Rule("NonceLength too short", W, TAG, E, lambda w: replace(w, chain=_edited(w.chain, _lengths(0, -1)))),
    # What follows breaks a MUST of 2.2.43, for which 3.3.5.13 has no line of its own.
    Rule("inner Channel is TRANSFORM", "2.2.43", BAD, E, lambda w: replace(w, chain=_patch(w.chain, CHANNEL, 3))),
    Rule("inner Channel is NONE", "2.2.43", BAD, E, lambda w: replace(w, chain=_patch(w.chain, CHANNEL, 0))),
    Rule("descriptors are cut off", "2.2.43", BAD, E, lambda w: replace(w, chain=w.chain[:-1])),
    Rule("RdmaDescriptorLength is 0", "2.2.43", BAD, E, lambda w: replace(w, chain=_patch(w.chain, LENGTH, 0))),
    Rule("RdmaDescriptorLength is uneven", "2.2.43", BAD, E, lambda w: replace(w, chain=_patch(w.chain, LENGTH, 15))),
    Rule("more transforms said than there", "2.2.43", BAD, S, lambda w: replace(w, chain=_patch(w.chain, COUNT, 9))),
    Rule("SignatureLength beyond the end", "2.2.43.1", BAD, S, lambda w: replace(w, chain=_patch(w.chain, 18, 999))),
)

R, NET = "3.2.5.11", Status.INVALID_NETWORK_RESPONSE

READ_RULES: tuple[Rule[Read], ...] = (
    Rule("connection is not RDMA", R, NET, E, lambda r: replace(r, rdma=False)),
    Rule("no transform ids", R, NET, E, lambda r: replace(r, ids=())),
    Rule("TransformCount is 0", R, NET, E, lambda r: replace(r, chain=_patch(r.chain, COUNT, 0))),
    Rule("ENCRYPTION in a response that is not", R, NET, E, lambda r: replace(r, encrypted=False)),
    Rule("SIGNING in an encrypted response", R, NET, S, lambda r: replace(r, encrypted=True)),
    Rule("two transforms", R, NET, S, lambda r: replace(r, chain=_edited(r.chain, _twice()))),
    Rule("ENCRYPTION and SIGNING", R, NET, E, lambda r: replace(r, chain=_edited(r.chain, _twice(S)))),
    Rule("unknown transform", R, NET, S, lambda r: replace(r, chain=_patch(r.chain, KIND, 3))),
    Rule("SignatureLength above 16", R, NET, E, lambda r: replace(r, chain=_edited(r.chain, _lengths(1)))),
    Rule("NonceLength too long", R, NET, E, lambda r: replace(r, chain=_edited(r.chain, _lengths(0, 1)))),
    Rule("NonceLength too short", R, NET, E, lambda r: replace(r, chain=_edited(r.chain, _lengths(0, -1)))),
    Rule("shorter than the structure", "2.2.43", NET, S, lambda r: replace(r, chain=r.chain[:15])),
    Rule("a transform is cut off", "2.2.43.1", NET, S, lambda r: replace(r, chain=r.chain[:-1])),
)


def good_chain(kind: Kind, cipher: Cipher = Cipher.AES_128_GCM, descriptors: tuple[Descriptor, ...] = ()) -> bytes:
    """Return a chain with lengths as they must be and no secrets, for the rules to break."""
    nonce = bytes(nonce_length(kind, cipher)) if kind is Kind.ENCRYPTION else b""
    channel = 1 if descriptors else 0
    return encode_chain(Chain(channel, (Crypto(kind, bytes(16), nonce),), descriptors))
