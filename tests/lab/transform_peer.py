"""Speak the RDMA transforms of SMB 3.1.1 as the text of MS-SMB2 has them, and as nothing of this project has them.

It is the second opinion of the tests: it imports no code of the project.
``# open:`` marks what the text leaves open or contradicts, and how it is settled here.
``# suite:`` marks where Microsoft's WindowsProtocolTestSuites (MS-SMBD cases, MS-SMB2 SDK) was compared with it.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from construct import Array, Bytes, Construct, ConstructError, Int16ul, Int32ul, Int64ul, Padding, Struct, this
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

TAG = 16
DESCRIPTOR = 16
HEADER = 16


class TransformId(IntEnum):
    """Name what a connection may do to RDMA payloads [MS-SMB2 2.2.3.1.6]."""

    NONE = 0
    ENCRYPTION = 1
    SIGNING = 2


class Kind(IntEnum):
    """Name what was done to one payload [MS-SMB2 2.2.43.1]."""

    ENCRYPTION = 1
    SIGNING = 2


class Channel(IntEnum):
    """Name the channel of a request, or of an SMB2_RDMA_TRANSFORM, which has no TRANSFORM [MS-SMB2 2.2.21, 2.2.43]."""

    NONE = 0
    RDMA_V1 = 1
    RDMA_V1_INVALIDATE = 2
    RDMA_TRANSFORM = 3


class Cipher(IntEnum):
    """Name the algorithms of Connection.CipherId [MS-SMB2 2.2.3.1.2]."""

    AES_128_CCM = 1
    AES_128_GCM = 2
    AES_256_CCM = 3
    AES_256_GCM = 4


class Signer(IntEnum):
    """Name the algorithms of Connection.SigningAlgorithmId [MS-SMB2 2.2.3.1.7]."""

    HMAC_SHA256 = 0
    AES_CMAC = 1
    AES_GMAC = 2


class Status(IntEnum):
    """Name the outcomes that the rules mention [MS-ERREF 2.3.1]."""

    SUCCESS = 0
    INVALID_PARAMETER = 0xC000000D
    INVALID_NETWORK_RESPONSE = 0xC00000C3
    BAD_DATA = 0xC000090B
    INVALID_SIGNATURE = 0xC000A000
    AUTH_TAG_MISMATCH = 0xC000A002


class Refused(Exception):
    """Carry the status with which a receiver refuses a chain."""

    def __init__(self, status: Status, rule: str) -> None:
        super().__init__(f"{status.name}: {rule}")
        self.status = status
        self.rule = rule


_CAPABILITIES: Construct = Struct(
    "count" / Int16ul, Padding(2), Padding(4), "ids" / Array(this.count, Int16ul)
)  # [MS-SMB2 2.2.3.1.6]
_TRANSFORM: Construct = Struct(
    "offset" / Int16ul, "length" / Int16ul, "channel" / Int32ul, "count" / Int16ul, Padding(2), Padding(4)
)  # [MS-SMB2 2.2.43]
# open: the diagram of 2.2.43.1 shows a "Reserved1" beside Signature that no text defines: it takes no bytes.
_CRYPTO: Construct = Struct(
    "kind" / Int16ul,
    "signature_length" / Int16ul,
    "nonce_length" / Int16ul,
    Padding(2),
    "signature" / Bytes(this.signature_length),
    "nonce" / Bytes(this.nonce_length),
)  # [MS-SMB2 2.2.43.1]
_DESCRIPTOR: Construct = Struct("offset" / Int64ul, "token" / Int32ul, "length" / Int32ul)  # [MS-SMBD 2.2.3.1]


@dataclass(frozen=True)
class Descriptor:
    """Hold one SMB_DIRECT_BUFFER_DESCRIPTOR_V1 [MS-SMBD 2.2.3.1]."""

    offset: int
    token: int
    length: int


@dataclass(frozen=True)
class Crypto:
    """Hold one SMB2_RDMA_CRYPTO_TRANSFORM; an unknown kind stays a number [MS-SMB2 2.2.43.1]."""

    kind: int
    signature: bytes
    nonce: bytes


@dataclass(frozen=True)
class Chain:
    """Hold an SMB2_RDMA_TRANSFORM, its transforms and its descriptors [MS-SMB2 2.2.43]."""

    channel: int
    transforms: tuple[Crypto, ...]
    descriptors: tuple[Descriptor, ...] = ()


def encode_capabilities(ids: Sequence[int]) -> bytes:
    """Build the Data of the negotiate context, without its 8-byte header [MS-SMB2 2.2.3.1.6]."""
    return bytes(_CAPABILITIES.build({"count": len(ids), "ids": list(ids)}))


def decode_capabilities(data: bytes) -> list[int]:
    """Return the ids of a context, and refuse one that is too short or counts none [MS-SMB2 3.3.5.4]."""
    # open: "the size of the structure" depends on its count: it is 8 bytes and as many ids as TransformCount says.
    try:
        ids = [int(value) for value in _CAPABILITIES.parse(data).ids]
    except ConstructError as error:
        raise Refused(Status.INVALID_PARAMETER, "capabilities are shorter than they say") from error
    if not ids:
        raise Refused(Status.INVALID_PARAMETER, "TransformCount of the context is 0")
    return ids


def answer_capabilities(offered: Sequence[int], supported: Sequence[int]) -> list[int]:
    """Return the ids of the response: what both have, or NONE alone [MS-SMB2 3.3.5.4]."""
    # open: NONE in an offer is common to both by the letter: it protects nothing, and so it is never common here.
    common = [value for value in offered if value in supported and value != TransformId.NONE]
    return common or [int(TransformId.NONE)]


def aligned(length: int) -> int:
    """Return the next multiple of 8, counted from the beginning of Buffer [MS-SMB2 3.3.5.13]."""
    return -(-length // 8) * 8


def encode_chain(chain: Chain) -> bytes:
    """Build a chain: each transform padded to 8 bytes, then the descriptors [MS-SMB2 2.2.43, 3.2.4.7]."""
    body = b"".join(_encode_crypto(one) for one in chain.transforms)
    tail = b"".join(_DESCRIPTOR.build(vars(one)) for one in chain.descriptors)
    # With SMB2_CHANNEL_NONE, as in each READ response, both are zero [MS-SMB2 2.2.43, 3.3.5.12].
    none = chain.channel == Channel.NONE
    head = {"offset": 0 if none else HEADER + len(body), "length": 0 if none else len(tail)}
    return bytes(_TRANSFORM.build({**head, "channel": chain.channel, "count": len(chain.transforms)})) + body + tail


def _encode_crypto(one: Crypto) -> bytes:
    lengths = {"signature_length": len(one.signature), "nonce_length": len(one.nonce)}
    data = bytes(_CRYPTO.build({**vars(one), **lengths}))
    # open: whether a READ response, which has no descriptors, is padded. Padding is part of the structure, and
    # DataLength counts it. suite: the same, its GMAC case expects 56, its CMAC case 40. The decoder takes both forms.
    return data.ljust(aligned(len(data)), b"\0")


def decode_chain(data: bytes) -> Chain:
    """Take a chain apart, or refuse it; which status a client makes of it is for its caller [MS-SMB2 3.3.5.13]."""
    if len(data) < HEADER:
        raise Refused(Status.INVALID_PARAMETER, "shorter than SMB2_RDMA_TRANSFORM")
    head = _TRANSFORM.parse(data)
    if not head.count:
        raise Refused(Status.INVALID_PARAMETER, "TransformCount is 0")
    if head.channel not in (Channel.NONE, Channel.RDMA_V1, Channel.RDMA_V1_INVALIDATE):
        raise Refused(Status.INVALID_PARAMETER, "Channel of the transform is none of three")
    transforms: list[Crypto] = []
    at = end = HEADER
    for _ in range(head.count):
        try:
            one = _CRYPTO.parse(data[at:])
        except ConstructError as error:
            raise Refused(Status.INVALID_PARAMETER, "a transform is cut off") from error
        if one.kind not in tuple(Kind):
            raise Refused(Status.INVALID_PARAMETER, "a transform that 2.2.43 does not know")
        transforms.append(Crypto(int(one.kind), bytes(one.signature), bytes(one.nonce)))
        end = at + 8 + int(one.signature_length) + int(one.nonce_length)
        at = aligned(end)
    if head.channel == Channel.NONE:
        return Chain(int(head.channel), tuple(transforms))
    if head.offset != at:
        raise Refused(Status.INVALID_PARAMETER, "descriptors do not begin at the first 8-byte aligned offset")
    # open: nothing forbids bytes behind the descriptors. suite: WriteMultipleOperation sends some, and expects success.
    rest = data[at : at + head.length]
    if len(rest) != head.length:
        raise Refused(Status.INVALID_PARAMETER, "descriptors are cut off")
    return Chain(int(head.channel), tuple(transforms), decode_descriptors(rest))


def decode_descriptors(data: bytes) -> tuple[Descriptor, ...]:
    """Take a list of descriptors apart [MS-SMBD 2.2.3.1]."""
    # open: no rule names a list that is empty or no multiple of 16 bytes: there is no descriptor to use.
    if not data or len(data) % DESCRIPTOR:
        raise Refused(Status.INVALID_PARAMETER, "descriptors are missing or uneven")
    found = [_DESCRIPTOR.parse(data[at : at + DESCRIPTOR]) for at in range(0, len(data), DESCRIPTOR)]
    return tuple(Descriptor(int(d.offset), int(d.token), int(d.length)) for d in found)


@dataclass(frozen=True)
class Keys:
    """Hold what one end needs: it sends with ``encryption`` and receives with ``decryption`` [MS-SMB2 3.2.5.3.1]."""

    signing: bytes
    encryption: bytes
    decryption: bytes


def derive(key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """Derive one key by SP800-108 in counter mode, r = 32, with HMAC-SHA256 [MS-SMB2 3.1.4.2]."""
    # One block is 256 bits, so the counter never passes 1; L is part of what is hashed.
    data = b"\0\0\0\1" + label + b"\0" + context + bits.to_bytes(4, "big")
    return hmac.digest(key, data, "sha256")[: bits // 8]


def derive_keys(session_key: bytes, full_key: bytes, preauth_hash: bytes, cipher: Cipher, server: bool) -> Keys:
    """Derive the keys of one end; labels end with their null byte [MS-SMB2 3.2.5.3.1, 3.3.5.5.3]."""
    # open: by the letter of 3.1.4.2 L is 256 for every key once CipherId is AES-256. The signing key is derived from
    # the 16-byte SessionKey for AES-128-CMAC, which takes 16 bytes only [MS-SMB2 3.1.4.1], so its L stays 128.
    # suite: the same.
    wide = cipher in (Cipher.AES_256_CCM, Cipher.AES_256_GCM)
    base, bits = (full_key, 256) if wide else (session_key[:16], 128)
    to_server = derive(base, b"SMBC2SCipherKey\0", preauth_hash, bits)
    to_client = derive(base, b"SMBS2CCipherKey\0", preauth_hash, bits)
    signing = derive(session_key[:16], b"SMBSigningKey\0", preauth_hash, 128)
    return Keys(signing, to_client, to_server) if server else Keys(signing, to_server, to_client)


def nonce_length(kind: Kind, algorithm: Cipher | Signer) -> int:
    """Return 11 for CCM, 12 for GCM and GMAC, and 0 for the other signers [MS-SMB2 3.2.4.7, 3.3.5.12]."""
    if kind is Kind.ENCRYPTION:
        return 11 if algorithm in (Cipher.AES_128_CCM, Cipher.AES_256_CCM) else 12
    return 12 if algorithm is Signer.AES_GMAC else 0


def build_nonce(kind: Kind, algorithm: Cipher | Signer, counter: int, server: bool) -> bytes:
    """Build a nonce of the right length from a counter that a session never uses twice [MS-SMB2 2.2.43.1]."""
    # open: 3.1.4.1 fixes the GMAC nonce of a message (MessageId, then role and CANCEL); 3.2.4.7 and 3.3.5.12 leave that
    # of a payload to the sender, and the key is the same. The top bit, zero in each message's nonce, keeps them apart.
    # suite: signs the payload with the nonce of the message itself, which 2.2.43.1 forbids; a receiver takes any nonce.
    # For encryption the counter is the one of the messages too: their key is the same [MS-SMB2 3.1.4.3].
    length = nonce_length(kind, algorithm)
    if kind is Kind.SIGNING and length:
        return counter.to_bytes(8, "little") + (0x8000_0000 | server).to_bytes(4, "little")
    return counter.to_bytes(8, "little").ljust(length, b"\0")[:length]


def protect(payload: bytes, keys: Keys, kind: Kind, algorithm: Cipher | Signer, nonce: bytes) -> tuple[bytes, Crypto]:
    """Return what goes into the buffer, and the transform that describes it [MS-SMB2 3.2.4.7, 3.3.5.12]."""
    # open: only nonce, data and key are named as inputs, so there is no associated data; for messages 3.1.4.3 names it.
    # suite: the same, with a tag of 16 bytes.
    if len(nonce) != nonce_length(kind, algorithm):
        raise ValueError(f"a nonce of {len(nonce)} bytes for {algorithm.name}")
    if kind is Kind.SIGNING:
        return payload, Crypto(kind, sign(payload, keys.signing, algorithm, nonce), nonce)
    sealed = _aead(keys.encryption, algorithm).encrypt(nonce, payload, None)
    return sealed[:-TAG], Crypto(kind, sealed[-TAG:], nonce)


def sign(payload: bytes, key: bytes, algorithm: Cipher | Signer, nonce: bytes) -> bytes:
    """Sign a payload with Channel.SigningKey [MS-SMB2 3.1.4.1, 3.2.4.1.1, 3.3.4.1.1]."""
    # open: 3.1.4.1 hashes "the entire message, beginning with the SMB2 header". A payload has no header to zero:
    # what is hashed is the data, from its first byte to its last.
    # suite: takes CMAC for all but GMAC in 3.x; by 3.1.4.1 the negotiated algorithm decides, HMAC-SHA256 as well.
    if algorithm is Signer.HMAC_SHA256:
        return hmac.digest(key, payload, "sha256")[:TAG]
    if algorithm is Signer.AES_GMAC:
        return AESGCM(key).encrypt(nonce, b"", payload)
    mac = CMAC(AES(key))
    mac.update(payload)
    return mac.finalize()


def unprotect(data: bytes, keys: Keys, one: Crypto, algorithm: Cipher | Signer) -> bytes:
    """Return the payload, or refuse it as a server does [MS-SMB2 3.3.5.13]."""
    fits = len(one.nonce) == nonce_length(Kind(one.kind), algorithm)
    if one.kind == Kind.SIGNING:
        # open: no rule names a wrong length of a signed transform: such a signature does not verify.
        if not fits or not hmac.compare_digest(sign(data, keys.signing, algorithm, one.nonce), one.signature):
            raise Refused(Status.INVALID_SIGNATURE, "signature of the payload")
        return data
    # open: the text refuses more than 16 bytes only. A shorter tag would be easier to guess, and no rule sends one.
    if len(one.signature) != TAG or not fits:
        raise Refused(Status.AUTH_TAG_MISMATCH, "length of tag or nonce")
    try:
        return _aead(keys.decryption, algorithm).decrypt(one.nonce, data + one.signature, None)
    except InvalidTag as error:
        # open: the text names no status for a tag that fails: it is the one whose name says so.
        raise Refused(Status.AUTH_TAG_MISMATCH, "tag of the payload") from error


def check_size(payload: bytes, remaining: int) -> bytes:
    """Refuse a decrypted payload that is not as long as RemainingBytes says [MS-SMB2 3.3.5.13]."""
    # open: how much is fetched when the descriptors hold more than RemainingBytes. By this rule it is what they hold.
    # suite: always registers exactly RemainingBytes.
    if len(payload) != remaining:
        raise Refused(Status.BAD_DATA, "size of the decrypted data")
    return payload


def _aead(key: bytes, algorithm: Cipher | Signer) -> AESCCM | AESGCM:
    return AESCCM(key, TAG) if algorithm in (Cipher.AES_128_CCM, Cipher.AES_256_CCM) else AESGCM(key)
