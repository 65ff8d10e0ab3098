"""Smb2OverRdmaChannelRemoteInvalidation: tokens that a response invalidates. [MS-SMB2 3.3.5.12, 3.3.5.13]"""

from __future__ import annotations

from collections.abc import Sequence

from smb3server.lab.conformance.cases.rdma_channel import READ, WRITE
from smb3server.lab.conformance.data_channel import (
    Answer,
    DataFile,
    Exposed,
    Read,
    Write,
    check_read,
    check_write,
    open_file,
    status_name,
)
from smb3server.lab.conformance.peer import Ended
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import NotApplicable
from smb3server.lab.content import content_of, other_content
from smb3server.wire.negotiate import Dialect
from smb3server.wire.read_write import Channel, pack_descriptors
from smb3server.wire.status import NtStatus

SUITE = "Smb2OverRdmaChannelRemoteInvalidation"
INVALIDATE = Channel.RDMA_V1_INVALIDATE
WITH_INVALIDATION = (Dialect.SMB_3_0_2, Dialect.SMB_3_1_1)
SIZE = 65536


async def open_for_invalidation(trial: Trial, dialects: Sequence[int] = WITH_INVALIDATION) -> DataFile:
    """Open a file, if the fabric lets a server invalidate regions of this side."""
    file = await open_file(trial, dialects=dialects)
    endpoint = file.peer.endpoint
    if endpoint is None or not endpoint.capabilities.regions_invalidatable:
        raise NotApplicable("a peer cannot invalidate memory that is registered on this side of the fabric")
    return file


def check_invalidated(trial: Trial, answer: Answer, exposed: Exposed) -> None:
    """Require that the response has invalidated the token. [MS-SMBD 3.1.4.2]"""
    token = exposed.region.token
    trial.require(answer.invalidated is not None, f"the response does not invalidate token {token:#010x}")
    trial.require(answer.invalidated == token, f"the response invalidates {answer.invalidated:#x}, not {token:#x}")
    trial.require(not exposed.region.valid, "the token is still valid")


def check_kept(trial: Trial, answer: Answer, exposed: Exposed) -> None:
    """Require that the response has invalidated nothing."""
    trial.require(answer.invalidated is None, "the response invalidates a token, and the request asked for none of it")
    trial.require(exposed.region.valid, "the token is no longer valid")


async def ends_over(trial: Trial, file: DataFile, request: Read | Write) -> None:
    """Require that a request with an invalidated token does not succeed, and that the fabric ends the connection."""
    try:
        answer = await (file.read(request) if isinstance(request, Read) else file.write(request))
    except Ended as error:
        trial.note(f"no answer: {error}")
    else:
        trial.require(answer.status != NtStatus.SUCCESS, "a request with an invalidated token succeeded")
    await trial.terminated(file.peer, "a request with an invalidated token")


@case(SUITE, "BVT_Smb2OverRdma_Smb302_Write_SMB2_CHANNEL_RDMA_V1_INVALIDATE", WRITE)
async def write_invalidates(trial: Trial) -> None:
    """The response to a WRITE with SMB2_CHANNEL_RDMA_V1_INVALIDATE invalidates the first token. The next use of it ends
    the connection."""
    file = await open_for_invalidation(trial)
    content = content_of(SIZE)
    exposed = file.expose(SIZE, content)
    answer = await file.write(Write(SIZE, exposed.info, channel=INVALIDATE))
    check_write(trial, answer, SIZE)
    check_invalidated(trial, answer, exposed)
    trial.require(await file.content(SIZE) == content, "the file has other content than was written")
    await ends_over(trial, file, Write(SIZE, exposed.info, channel=INVALIDATE))


@case(SUITE, "BVT_Smb2OverRdma_Smb302_Read_SMB2_CHANNEL_RDMA_V1_INVALIDATE", READ)
async def read_invalidates(trial: Trial) -> None:
    """The response to a READ with SMB2_CHANNEL_RDMA_V1_INVALIDATE invalidates the first token, when the data is there.
    The next use of it ends the connection."""
    file = await open_for_invalidation(trial)
    content = content_of(SIZE)
    await file.fill(content)
    exposed = file.expose(SIZE)
    answer = await file.read(Read(SIZE, exposed.info, channel=INVALIDATE))
    check_read(trial, answer, SIZE)
    check_invalidated(trial, answer, exposed)
    trial.require(exposed.view == content, "the data is wrong")
    await ends_over(trial, file, Read(SIZE, exposed.info, channel=INVALIDATE))
    trial.require(exposed.view == content, "the memory was changed after its token was invalidated")


@case(SUITE, "Smb2OverRdma_Write_SMB2_CHANNEL_RDMA_V1", WRITE)
async def write_keeps(trial: Trial) -> None:
    """The response to a WRITE with SMB2_CHANNEL_RDMA_V1 invalidates nothing: the same token serves another WRITE."""
    file = await open_file(trial)
    for make in (content_of, other_content):
        content = make(SIZE)
        exposed = file.expose(SIZE, content)
        for _ in range(2):
            answer = await file.write(Write(SIZE, exposed.info))
            check_write(trial, answer, SIZE)
            check_kept(trial, answer, exposed)
        trial.require(await file.content(SIZE) == content, "the file has other content than was written")


@case(SUITE, "Smb2OverRdma_Read_SMB2_CHANNEL_RDMA_V1", READ)
async def read_keeps(trial: Trial) -> None:
    """The response to a READ with SMB2_CHANNEL_RDMA_V1 invalidates nothing: the same token serves another READ."""
    file = await open_file(trial)
    exposed = file.expose(SIZE)
    for make in (content_of, other_content):
        content = make(SIZE)
        await file.fill(content)
        answer = await file.read(Read(SIZE, exposed.info))
        check_read(trial, answer, SIZE)
        check_kept(trial, answer, exposed)
        trial.require(exposed.view == content, "the data is wrong")


@case(SUITE, "Smb2OverRdma_Smb300_Write_SMB2_CHANNEL_RDMA_V1_INVALIDATE", WRITE)
async def write_3_0(trial: Trial) -> None:
    """With dialect 3.0, a WRITE with SMB2_CHANNEL_RDMA_V1_INVALIDATE fails with STATUS_INVALID_PARAMETER and writes
    nothing."""
    file = await open_file(trial, dialects=(Dialect.SMB_3_0,))
    exposed = file.expose(SIZE, content_of(SIZE))
    answer = await file.write(Write(SIZE, exposed.info, channel=INVALIDATE))
    trial.require(answer.status == NtStatus.INVALID_PARAMETER, f"the answer is {status_name(answer.status)}")
    trial.require(await file.content(SIZE) == b"", "the refused WRITE has written")


@case(SUITE, "Smb2OverRdma_Smb300_Read_SMB2_CHANNEL_RDMA_V1_INVALIDATE", READ)
async def read_3_0(trial: Trial) -> None:
    """With dialect 3.0, a READ with SMB2_CHANNEL_RDMA_V1_INVALIDATE fails with STATUS_INVALID_PARAMETER."""
    file = await open_file(trial, dialects=(Dialect.SMB_3_0,))
    await file.fill(content_of(SIZE))
    exposed = file.expose(SIZE)
    answer = await file.read(Read(SIZE, exposed.info, channel=INVALIDATE))
    trial.require(answer.status == NtStatus.INVALID_PARAMETER, f"the answer is {status_name(answer.status)}")
    trial.require(exposed.untouched(), "the refused READ has written into the client's memory")


@case("Smb2RdmaRules", "Smb2RdmaRules_InvalidateFirstToken", "MS-SMB2 3.3.5.12, 3.3.5.13")
async def first_token(trial: Trial) -> None:
    """A request with several descriptors and SMB2_CHANNEL_RDMA_V1_INVALIDATE has the first token invalidated, and no
    other."""
    file = await open_for_invalidation(trial)
    content = content_of(SIZE)
    half = SIZE // 2
    first, second = file.expose(half, content[:half]), file.expose(half, content[half:])
    answer = await file.write(Write(SIZE, pack_descriptors([first.buffer, second.buffer]), channel=INVALIDATE))
    check_write(trial, answer, SIZE)
    check_invalidated(trial, answer, first)
    trial.require(second.region.valid, "the WRITE's second token was invalidated")
    first, second = file.expose(half), file.expose(half)
    answer = await file.read(Read(SIZE, pack_descriptors([first.buffer, second.buffer]), channel=INVALIDATE))
    check_read(trial, answer, SIZE)
    check_invalidated(trial, answer, first)
    trial.require(second.region.valid, "the READ's second token was invalidated")
    trial.require(bytes(first.view) + bytes(second.view) == content, "the data is wrong")
