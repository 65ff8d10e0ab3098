"""Smb2OverRdmaChannelTransformEncryption: data that moves by RDMA and is encrypted. [MS-SMB2 3.3.5.12, 3.3.5.13]"""

from __future__ import annotations

from dataclasses import replace

from smb3server.crypto.algorithms import Cipher
from smb3server.lab.conformance.protected import (
    OPERATIONS,
    open_protected,
    reads,
    refused,
    refuses,
    writes,
)
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.transforms import ENCRYPTION, SIGNING, Crypto, pack_chain
from smb3server.lab.conformance.trial import Trial
from smb3server.wire.status import NtStatus

SUITE = "Smb2OverRdmaChannelTransformEncryption"
PREFIX = "Smb2OverRdmaChannelTransform_Encryption"
READ, WRITE = "MS-SMB2 3.3.5.12", "MS-SMB2 3.3.5.13"


def _short(cipher: Cipher) -> str:
    """Return the cipher as Microsoft's names have it: AES128CCM."""
    return cipher.name.replace("_", "")


def _enter_read(cipher: Cipher, prefix: str) -> None:
    rule = f"An encrypted READ of the largest size has its data encrypted with {cipher.name} on its way by RDMA."

    @case(SUITE, f"{prefix}_ReadLargeFile_{_short(cipher)}", READ, rule=rule)
    async def run(trial: Trial) -> None:
        await reads(trial, await open_protected(trial, ENCRYPTION, cipher=cipher), ENCRYPTION)


def _enter_write(cipher: Cipher, prefix: str) -> None:
    rule = f"An encrypted WRITE of the largest size, with {cipher.name} and SMB2_CHANNEL_RDMA_TRANSFORM, is decrypted."

    @case(SUITE, f"{prefix}_WriteLargeFile_{_short(cipher)}", WRITE, rule=rule)
    async def run(trial: Trial) -> None:
        await writes(trial, await open_protected(trial, ENCRYPTION, cipher=cipher), ENCRYPTION)


def _enter_nonce(cipher: Cipher, change: str, by: int) -> None:
    rule = (
        f"A WRITE with {cipher.name} whose nonce is one byte too {'long' if by > 0 else 'short'} fails with "
        "STATUS_AUTH_TAG_MISMATCH and writes nothing."
    )

    def shape(crypto: Crypto, descriptors: bytes) -> bytes:
        nonce = crypto.nonce + b"\0" if by > 0 else crypto.nonce[:-1]
        return pack_chain([replace(crypto, nonce=nonce)], descriptors)

    @case(SUITE, f"{PREFIX}_WriteLargeFile_{change}NonceLength_{_short(cipher)}_Fails", WRITE, rule=rule)
    async def run(trial: Trial) -> None:
        file = await open_protected(trial, ENCRYPTION, cipher=cipher)
        await refuses(trial, file, ENCRYPTION, shape, NtStatus.AUTH_TAG_MISMATCH)


CIPHERS = (Cipher.AES_128_CCM, Cipher.AES_128_GCM, Cipher.AES_256_CCM, Cipher.AES_256_GCM)
for _cipher in CIPHERS:
    _prefix = f"BVT_{PREFIX}" if _cipher is Cipher.AES_128_CCM else PREFIX
    _enter_read(_cipher, _prefix)
    _enter_write(_cipher, _prefix)
    _enter_nonce(_cipher, "Increase", 1)
    _enter_nonce(_cipher, "Decrease", -1)


@case(SUITE, f"{PREFIX}_ReadMultipleOperation", READ)
async def read_multiple(trial: Trial) -> None:
    """64 encrypted READs return the whole file, each with its data encrypted on its way by RDMA."""
    await reads(trial, await open_protected(trial, ENCRYPTION, cipher=Cipher.AES_128_CCM), ENCRYPTION, OPERATIONS)


@case(SUITE, f"{PREFIX}_WriteMultipleOperation", WRITE)
async def write_multiple(trial: Trial) -> None:
    """64 encrypted WRITEs with SMB2_CHANNEL_RDMA_TRANSFORM write the whole file."""
    await writes(trial, await open_protected(trial, ENCRYPTION, cipher=Cipher.AES_128_CCM), ENCRYPTION, OPERATIONS)


@case(SUITE, f"{PREFIX}_WriteLargeFile_NoTransformIds_Fails", WRITE)
async def no_transform_ids(trial: Trial) -> None:
    """On a connection that has negotiated no transforms, a WRITE with SMB2_CHANNEL_RDMA_TRANSFORM fails with
    STATUS_INVALID_PARAMETER and writes nothing."""
    await refused(trial, ENCRYPTION, lambda crypto, descriptors: pack_chain([crypto], descriptors), ids=())


@case(SUITE, f"{PREFIX}_WriteLargeFile_ZeroTransformCount_Fails", WRITE)
async def zero_transform_count(trial: Trial) -> None:
    """A WRITE whose TransformCount is 0 fails with STATUS_INVALID_PARAMETER and writes nothing."""
    await refused(trial, ENCRYPTION, lambda crypto, descriptors: pack_chain([crypto], descriptors, count=0))


@case(SUITE, f"{PREFIX}_WriteLargeFile_MultipleEncryptionStructure_Fails", WRITE)
async def two_encryptions(trial: Trial) -> None:
    """A WRITE with two structures of SMB2_RDMA_TRANSFORM_TYPE_ENCRYPTION fails with STATUS_INVALID_PARAMETER and writes
    nothing."""
    await refused(trial, ENCRYPTION, lambda crypto, descriptors: pack_chain([crypto, crypto], descriptors))


@case(SUITE, f"{PREFIX}_WriteLargeFile_EncryptionAndSigningStructure_Fails", WRITE)
async def encryption_and_signing(trial: Trial) -> None:
    """A WRITE with a structure of SMB2_RDMA_TRANSFORM_TYPE_ENCRYPTION and one of SMB2_RDMA_TRANSFORM_TYPE_SIGNING fails
    with STATUS_INVALID_PARAMETER and writes nothing."""

    def both(crypto: Crypto, descriptors: bytes) -> bytes:
        return pack_chain([crypto, Crypto(SIGNING, bytes(16), b"")], descriptors)

    await refused(trial, ENCRYPTION, both, ids=(SIGNING, ENCRYPTION))


@case(SUITE, f"{PREFIX}_WriteLargeFile_BufferNotAligned_Fails", WRITE)
async def not_aligned(trial: Trial) -> None:
    """A WRITE whose descriptors follow the crypto transform at once, at no multiple of 8 bytes, fails with
    STATUS_INVALID_PARAMETER and writes nothing."""
    await refused(trial, ENCRYPTION, lambda crypto, descriptors: pack_chain([crypto], descriptors, aligned=False))


@case(SUITE, f"{PREFIX}_WriteLargeFile_IncreaseSignatureLength_Fails", WRITE)
async def long_signature(trial: Trial) -> None:
    """A WRITE whose SignatureLength is 17 fails with STATUS_AUTH_TAG_MISMATCH and writes nothing."""

    def longer(crypto: Crypto, descriptors: bytes) -> bytes:
        return pack_chain([replace(crypto, signature=crypto.signature + b"\0")], descriptors)

    await refused(trial, ENCRYPTION, longer, NtStatus.AUTH_TAG_MISMATCH)
