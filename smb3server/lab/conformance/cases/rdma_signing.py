"""Smb2OverRdmaChannelTransformSigning: data that moves by RDMA and is signed. [MS-SMB2 3.3.5.12, 3.3.5.13]"""

from __future__ import annotations

from dataclasses import replace

from smb3server.crypto.algorithms import SigningAlgorithm
from smb3server.lab.conformance.protected import (
    one_chain,
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

SUITE = "Smb2OverRdmaChannelTransformSigning"
PREFIX = "Smb2OverRdmaChannelTransform_Signing"
READ, WRITE = "MS-SMB2 3.3.5.12", "MS-SMB2 3.3.5.13"


def enter_signed(suite: str, prefix: str, signing: SigningAlgorithm) -> None:
    """Enter the cases of a READ and a WRITE that are signed by ``signing``."""

    @case(
        suite,
        f"{prefix}_ReadLargeFile_{signing.name}",
        READ,
        rule=f"A READ of the largest size, signed with {signing.name}, has its data signed as well.",
    )
    async def read(trial: Trial) -> None:
        await reads(trial, await open_protected(trial, SIGNING, signing=signing), SIGNING)

    @case(
        suite,
        f"{prefix}_WriteLargeFile_{signing.name}",
        WRITE,
        rule=f"A WRITE of the largest size, signed with {signing.name}, is accepted with its signature of the data.",
    )
    async def write(trial: Trial) -> None:
        await writes(trial, await open_protected(trial, SIGNING, signing=signing), SIGNING)


for _signing in (SigningAlgorithm.AES_GMAC, SigningAlgorithm.AES_CMAC):
    enter_signed(SUITE, PREFIX, _signing)


@case(SUITE, f"{PREFIX}_WriteLargeFile_FlagsSignedNotSet_Fails", WRITE)
async def not_signed(trial: Trial) -> None:
    """A WRITE with SMB2_RDMA_TRANSFORM_TYPE_SIGNING and without SMB2_FLAGS_SIGNED, as it is when the session encrypts,
    fails with STATUS_INVALID_PARAMETER and writes nothing."""
    file = await open_protected(trial, ENCRYPTION, ids=(SIGNING,))
    await refuses(trial, file, SIGNING, one_chain)


@case(SUITE, f"{PREFIX}_WriteLargeFile_SigningStructure_EncryptionId_Fails", WRITE)
async def not_negotiated(trial: Trial) -> None:
    """On a connection that has negotiated SMB2_RDMA_TRANSFORM_ENCRYPTION alone, a signed WRITE with
    SMB2_RDMA_TRANSFORM_TYPE_SIGNING fails with STATUS_INVALID_PARAMETER and writes nothing."""
    await refused(trial, SIGNING, one_chain, ids=(ENCRYPTION,))


@case(SUITE, f"{PREFIX}_WriteLargeFile_InvalidSignature_Fails", WRITE)
async def wrong_signature(trial: Trial) -> None:
    """A WRITE whose data has another signature fails with STATUS_INVALID_SIGNATURE and writes nothing."""

    def damaged(crypto: Crypto, descriptors: bytes) -> bytes:
        signature = bytes([crypto.signature[0] ^ 1]) + crypto.signature[1:]
        return pack_chain([replace(crypto, signature=signature)], descriptors)

    await refused(trial, SIGNING, damaged, NtStatus.INVALID_SIGNATURE)


@case(SUITE, f"{PREFIX}_WriteLargeFile_NoTransformIds_Fails", WRITE)
async def no_transform_ids(trial: Trial) -> None:
    """On a connection that has negotiated no transforms, a signed WRITE with SMB2_CHANNEL_RDMA_TRANSFORM fails with
    STATUS_INVALID_PARAMETER and writes nothing."""
    await refused(trial, SIGNING, one_chain, ids=())


@case(SUITE, f"{PREFIX}_WriteLargeFile_ZeroTransformCount_Fails", WRITE)
async def zero_transform_count(trial: Trial) -> None:
    """A signed WRITE whose TransformCount is 0 fails with STATUS_INVALID_PARAMETER and writes nothing."""
    await refused(trial, SIGNING, lambda crypto, descriptors: pack_chain([crypto], descriptors, count=0))
