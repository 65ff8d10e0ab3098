"""Smb2RdmaTransformRules: rules of RDMA transforms which Microsoft's suite has no case for. [MS-SMB2 2.2.43, 3.3.5.13]

Not tested: STATUS_BAD_DATA, for decrypted data of another length than RemainingBytes (3.3.5.13). A server that fetches
RemainingBytes bytes, as 3.1.4.6 of MS-SMBD lets it, never has any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.lab.conformance.cases.rdma_invalidation import check_invalidated, open_for_invalidation
from smb3server.lab.conformance.cases.rdma_signing import enter_signed
from smb3server.lab.conformance.data_channel import Read, Write, check_write
from smb3server.lab.conformance.protected import (
    SIZE,
    TRANSFORM,
    Shape,
    check_protected_read,
    one_chain,
    open_protected,
    reads,
    refuses,
    write_one,
)
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.transforms import ENCRYPTION, SIGNING, Crypto, pack_chain, protect, unprotect
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.content import content_of
from smb3server.wire.read_write import TAIL, Channel, pack_descriptors
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import RemoteBuffer

SUITE = "Smb2RdmaTransformRules"
WRITE = "MS-SMB2 3.3.5.13"
HEADER = 16
"""Bytes of SMB2_RDMA_TRANSFORM."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to break a good WRITE with transforms, and the status that follows."""

    name: str
    what: str
    shape: Shape = one_chain
    kind: int = ENCRYPTION
    travels: int | None = None
    """How the request is protected; as ``kind`` says by default."""
    ids: tuple[int, ...] | None = None
    status: NtStatus | None = NtStatus.INVALID_PARAMETER
    """None: any that is not success, where the text names none."""
    change: Callable[[Write], Write] = lambda write: write
    section: str = WRITE


def _kind(number: int) -> Shape:
    return lambda crypto, descriptors: pack_chain([replace(crypto, kind=number)], descriptors)


def _channel(number: int) -> Shape:
    return lambda crypto, descriptors: pack_chain([crypto], descriptors, channel=number)


def _info(change: Callable[[bytes], bytes]) -> Callable[[Write], Write]:
    return lambda write: replace(write, info=change(write.info))


def _empty_first(crypto: Crypto, descriptors: bytes) -> bytes:
    return pack_chain([crypto], pack_descriptors([RemoteBuffer(0x10000, 1, 0)]) + descriptors)


def _early(crypto: Crypto, descriptors: bytes) -> bytes:
    return pack_chain([crypto], descriptors, descriptor_offset=HEADER)


def _late(crypto: Crypto, descriptors: bytes) -> bytes:
    """Put 8 bytes more than needed in front of the descriptors, and say so."""
    good = pack_chain([crypto], b"")
    return pack_chain([crypto], bytes(8) + descriptors, descriptor_offset=len(good) + 8, descriptor_length=16)


def _flipped_tag(crypto: Crypto, descriptors: bytes) -> bytes:
    return pack_chain(
        [replace(crypto, signature=crypto.signature[:-1] + bytes([crypto.signature[-1] ^ 1]))], descriptors
    )


def _other_nonce(crypto: Crypto, descriptors: bytes) -> bytes:
    return pack_chain([replace(crypto, nonce=bytes(len(crypto.nonce)))], descriptors)


def _short_signature(crypto: Crypto, descriptors: bytes) -> bytes:
    return pack_chain([replace(crypto, signature=crypto.signature[:8])], descriptors)


ROWS = (
    Row("LengthNotZero", "whose Length is not 0", change=lambda w: replace(w, length=16)),
    Row("DataOffsetNotZero", "whose DataOffset is not 0", change=lambda w: replace(w, data_offset=TAIL)),
    Row("RemainingZero", "whose RemainingBytes is 0", change=lambda w: replace(w, remaining=0)),
    Row("InfoOffsetZero", "whose WriteChannelInfoOffset is 0", change=lambda w: replace(w, info_offset=0)),
    Row("InfoLengthZero", "whose WriteChannelInfoLength is 0", change=lambda w: replace(w, info_length=0)),
    Row(
        "InfoTooShort",
        "whose WriteChannelInfoLength is 15, less than SMB2_RDMA_TRANSFORM",
        change=lambda w: replace(w, info_length=HEADER - 1),
    ),
    Row(
        "RemainingAboveMaxWriteSize",
        "of 4294967295 bytes, more than MaxWriteSize",
        change=lambda w: replace(w, remaining=0xFFFFFFFF),
    ),
    Row(
        "DescriptorsTooShort",
        "whose descriptors hold one byte less than RemainingBytes",
        change=lambda w: replace(w, remaining=SIZE + 1),
    ),
    Row("FirstDescriptorEmpty", "whose first descriptor is empty", _empty_first),
    Row("EncryptionNotNegotiated", "with encryption on a connection that negotiated signing alone", ids=(SIGNING,)),
    Row(
        "RequestNotEncrypted",
        "with SMB2_RDMA_TRANSFORM_TYPE_ENCRYPTION in a request that is signed and not encrypted",
        travels=SIGNING,
        ids=(ENCRYPTION, SIGNING),
    ),
    Row(
        "TwoSigningStructures",
        "with two structures of SMB2_RDMA_TRANSFORM_TYPE_SIGNING",
        lambda crypto, descriptors: pack_chain([crypto, crypto], descriptors),
        SIGNING,
    ),
    Row("TransformUnknown", "with a transform of type 3", _kind(3), section="MS-SMB2 3.3.5.13, 2.2.43.1"),
    Row("TransformZero", "with a transform of type 0", _kind(0), SIGNING, section="MS-SMB2 3.3.5.13, 2.2.43.1"),
    Row("DescriptorsTooEarly", "whose RdmaDescriptorOffset is that of its transform", _early),
    Row("DescriptorsTooLate", "whose descriptors are 8 bytes behind the first aligned offset", _late),
    Row("ChannelTransformInside", "whose SMB2_RDMA_TRANSFORM has Channel 3", _channel(3), section="MS-SMB2 2.2.43"),
    Row("ChannelUnknownInside", "whose SMB2_RDMA_TRANSFORM has Channel 4", _channel(4), section="MS-SMB2 2.2.43"),
    Row("ChannelNoneInside", "whose SMB2_RDMA_TRANSFORM has no channel", _channel(0), section="MS-SMB2 2.2.43"),
    Row(
        "DescriptorsEmpty",
        "whose RdmaDescriptorLength is 0",
        lambda crypto, descriptors: pack_chain([crypto], descriptors, descriptor_length=0),
        section="MS-SMB2 2.2.43",
    ),
    Row(
        "DescriptorsUneven",
        "whose RdmaDescriptorLength is 15",
        lambda crypto, descriptors: pack_chain([crypto], descriptors, descriptor_length=15),
        section="MS-SMB2 2.2.43",
    ),
    Row(
        "DescriptorsBeyondInfo",
        "whose RdmaDescriptorLength exceeds the channel information",
        lambda crypto, descriptors: pack_chain([crypto], descriptors, descriptor_length=32),
        section="MS-SMB2 2.2.43, 3.3.5.2.6",
    ),
    Row(
        "CountBeyondInfo",
        "with one transform and TransformCount 9",
        lambda crypto, descriptors: pack_chain([crypto], descriptors, count=9),
        SIGNING,
        section="MS-SMB2 2.2.43, 3.3.5.2.6",
    ),
    Row(
        "TransformCutOff",
        "whose SignatureLength exceeds the channel information",
        change=_info(lambda info: info[:18] + b"\xe7\x03" + info[20:]),
        kind=SIGNING,
        section="MS-SMB2 2.2.43.1, 3.3.5.2.6",
    ),
    # 3.3.5.13 names no status for a tag that is wrong, and none for a signature of a wrong length.
    Row("TagWrong", "whose data has another tag", _flipped_tag, status=None),
    Row("NonceWrong", "whose data was encrypted with another nonce", _other_nonce, status=None),
    Row("TagShort", "whose tag is 8 bytes long", _short_signature, status=None),
    Row("SignatureShort", "whose signature is 8 bytes long", _short_signature, SIGNING, status=None),
)


def _enter(row: Row) -> None:
    outcome = "fails" if row.status is None else f"fails with STATUS_{row.status.name}"
    rule = f"A WRITE with SMB2_CHANNEL_RDMA_TRANSFORM {row.what} {outcome}, writes nothing, and the connection goes on."

    @case(SUITE, f"{SUITE}_{row.name}", row.section, rule=rule)
    async def run(trial: Trial) -> None:
        travels = row.kind if row.travels is None else row.travels
        ids = (row.kind,) if row.ids is None else row.ids
        file = await open_protected(trial, travels, ids=ids)
        await refuses(trial, file, row.kind, row.shape, row.status, row.change)
        if travels in ids:
            await write_one(trial, file, travels, content_of(SIZE))


for _row in ROWS:
    _enter(_row)

enter_signed(SUITE, SUITE, SigningAlgorithm.HMAC_SHA256)


@case(SUITE, f"{SUITE}_ReservedIgnored", "MS-SMB2 2.2.43, 2.2.43.1")
async def reserved(trial: Trial) -> None:
    """Reserved fields and padding of the transforms are ignored."""
    file = await open_protected(trial, ENCRYPTION)
    payload = content_of(SIZE)
    moved, crypto = protect(file.session, ENCRYPTION, payload)
    exposed = file.expose(SIZE, moved)
    info = bytearray(pack_chain([crypto], exposed.info))
    end = HEADER + len(crypto.pack())
    for at in (*range(10, 16), 22, 23, *range(end, len(info) - 16)):
        info[at] = 0xFF
    check_write(trial, await file.write(Write(SIZE, bytes(info), channel=TRANSFORM)), SIZE)
    trial.require(await file.content(SIZE + 1) == payload, "the file has other content than was written")


@case(SUITE, f"{SUITE}_SeveralDescriptors", "MS-SMB2 3.3.5.13, MS-SMBD 3.1.4.6")
async def several_descriptors(trial: Trial) -> None:
    """The encrypted data of a WRITE lies in as many descriptors as the client wants."""
    file = await open_protected(trial, ENCRYPTION)
    payload = content_of(SIZE)
    moved, crypto = protect(file.session, ENCRYPTION, payload)
    lengths = (1, 4095, 0, 7001, SIZE - 11097)
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    parts = [moved[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    exposed = [file.expose(max(len(part), 1), part) for part in parts]
    described = [one.part(0, len(part)) for one, part in zip(exposed, parts, strict=True)]
    info = pack_chain([crypto], pack_descriptors(described))
    check_write(trial, await file.write(Write(SIZE, info, channel=TRANSFORM)), SIZE)
    trial.require(await file.content(SIZE + 1) == payload, "the file has other content than was written")


@case(SUITE, f"{SUITE}_Invalidate", "MS-SMB2 3.3.5.12, 3.3.5.13")
async def invalidate(trial: Trial) -> None:
    """SMB2_CHANNEL_RDMA_V1_INVALIDATE in the transform of a WRITE, and in a READ with transforms, has the first token
    invalidated with the response."""
    await open_for_invalidation(trial)
    file = await open_protected(trial, ENCRYPTION)
    payload = content_of(SIZE)
    moved, crypto = protect(file.session, ENCRYPTION, payload)
    exposed = file.expose(SIZE, moved)
    info = pack_chain([crypto], exposed.info, channel=Channel.RDMA_V1_INVALIDATE)
    answer = await file.write(Write(SIZE, info, channel=TRANSFORM))
    check_write(trial, answer, SIZE)
    check_invalidated(trial, answer, exposed)
    exposed = file.expose(SIZE)
    answer = await file.read(Read(SIZE, exposed.info, channel=Channel.RDMA_V1_INVALIDATE))
    check_protected_read(trial, answer, SIZE)
    check_invalidated(trial, answer, exposed)
    data = unprotect(file.session, ENCRYPTION, answer.data, bytes(exposed.view))
    trial.require(data == payload, "the data is wrong")


@case(SUITE, f"{SUITE}_NewNonces", "MS-SMB2 2.2.43.1, 3.3.5.12, 3.1.4.3")
async def new_nonces(trial: Trial) -> None:
    """No nonce is used twice under the key that encrypts for the client, whether for messages or for data of READs."""
    for cipher in (Cipher.AES_128_GCM, Cipher.AES_128_CCM):
        await reads(trial, await open_protected(trial, ENCRYPTION, cipher=cipher), ENCRYPTION, 16)


@case(SUITE, f"{SUITE}_NewNonces_{SigningAlgorithm.AES_GMAC.name}", "MS-SMB2 2.2.43.1, 3.3.5.12, 3.1.4.1")
async def new_signing_nonces(trial: Trial) -> None:
    """No nonce of AES-GMAC is used twice under the key that signs, whether for messages of either side or for data of
    READs."""
    file = await open_protected(trial, SIGNING, signing=SigningAlgorithm.AES_GMAC)
    await reads(trial, file, SIGNING, 16)


@case(SUITE, f"{SUITE}_ShortRead", "MS-SMB2 3.3.5.12")
async def short_read(trial: Trial) -> None:
    """An encrypted READ beyond the end of the file protects and reports what there is, and writes no more."""
    file = await open_protected(trial, ENCRYPTION)
    content = content_of(1001)
    await file.fill(content)
    exposed = file.expose(SIZE)
    answer = await file.read(Read(SIZE, exposed.info))
    check_protected_read(trial, answer, len(content))
    received = bytes(exposed.view[: len(content)])
    trial.require(unprotect(file.session, ENCRYPTION, answer.data, received) == content, "the data is wrong")
    trial.require(exposed.untouched(len(content)), "the READ has written more than the file has")
