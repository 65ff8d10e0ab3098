"""Smb2OverRdmaChannel: READ and WRITE whose data moves by RDMA. [MS-SMB2 3.3.5.12, 3.3.5.13]"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.lab.conformance.data_channel import (
    DataFile,
    Exposed,
    Read,
    Write,
    check_read,
    check_write,
    open_file,
)
from smb3server.lab.conformance.peer import Ended, Silence
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.content import content_of
from smb3server.wire.read_write import pack_descriptors
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import RemoteBuffer

SUITE = "Smb2OverRdmaChannel"
READ, WRITE = "MS-SMB2 3.3.5.12", "MS-SMB2 3.3.5.13"
OPERATIONS = 64
DESCRIPTORS = 0xFFFF // 16
"""As many as the 16-bit length of the channel information allows."""


async def read_by_rdma(trial: Trial, operations: int) -> None:
    """Read a file of the largest size in this many operations, and compare it."""
    file = await open_file(trial)
    size = file.largest // operations
    content = content_of(size * operations)
    await file.fill(content)
    for at in range(0, len(content), size):
        exposed = file.expose(size)
        check_read(trial, await file.read(Read(size, exposed.info, at)), size)
        trial.require(exposed.view == content[at : at + size], f"the data at {at} is wrong")


async def write_by_rdma(trial: Trial, operations: int) -> None:
    """Write a file of the largest size in this many operations, and compare it."""
    file = await open_file(trial)
    size = file.largest // operations
    content = content_of(size * operations)
    for at in range(0, len(content), size):
        exposed = file.expose(size, content[at : at + size])
        check_write(trial, await file.write(Write(size, exposed.info, at)), size)
    trial.require(await file.content(len(content)) == content, "the file has other content than was written")


@case(SUITE, "BVT_Smb2OverRdmaChannel_ReadLargeFile", READ)
async def read_large_file(trial: Trial) -> None:
    """A READ of the largest size puts its data into the client's memory, and none into the response."""
    await read_by_rdma(trial, 1)


@case(SUITE, "BVT_Smb2OverRdmaChannel_WriteLargeFile", WRITE)
async def write_large_file(trial: Trial) -> None:
    """A WRITE of the largest size takes its data out of the client's memory."""
    await write_by_rdma(trial, 1)


@case(SUITE, "Smb2OverRdmaChannel_ReadMultipleOperation", READ)
async def read_multiple(trial: Trial) -> None:
    """64 READs by RDMA return the whole file."""
    await read_by_rdma(trial, OPERATIONS)


@case(SUITE, "Smb2OverRdmaChannel_WriteMultipleOperation", WRITE)
async def write_multiple(trial: Trial) -> None:
    """64 WRITEs by RDMA write the whole file."""
    await write_by_rdma(trial, OPERATIONS)


@case(SUITE, "Smb2OverRdmaChannel_ReadWriteMultipleBufferDescriptorList", "MS-SMBD 3.1.4.5, 3.1.4.6")
async def descriptor_list(trial: Trial) -> None:
    """A WRITE and a READ use as many descriptors as fit into the channel information, in their order."""
    file = await open_file(trial)
    size = file.largest
    content = content_of(size)
    each = size // DESCRIPTORS + 1
    sources = [file.expose(each, content[at : at + each]) for at in range(0, DESCRIPTORS * each, each)]
    info = pack_descriptors([source.buffer for source in sources])
    # Each costs a round trip.
    async with file.awake():
        check_write(trial, await file.write(Write(size, info)), size)
    sinks = [file.expose(each) for _ in range(DESCRIPTORS)]
    info = pack_descriptors([sink.buffer for sink in sinks])
    check_read(trial, await file.read(Read(size, info)), size)
    received = b"".join(sink.view for sink in sinks)
    trial.require(received[:size] == content, "what was read is not what was written")


async def refused_by_the_fabric(
    trial: Trial, damage: Callable[[DataFile, Exposed, RemoteBuffer], RemoteBuffer], *, missing: int = 0
) -> None:
    """Read with a descriptor that the fabric refuses. The READ must not succeed, and the server must go on.

    ``missing`` is how much shorter than the READ the memory is. The connection ends: the fabric ends it. [MS-SMBD
    3.1.4.5]
    """
    file = await open_file(trial)
    size = file.largest
    await file.fill(content_of(size))
    exposed = file.expose(size - missing)
    described = damage(file, exposed, exposed.buffer)
    trial.note(f"the memory is {exposed.buffer}, the descriptor says {described}")
    try:
        answer = await file.read(Read(size, pack_descriptors([described])))
    except (Ended, Silence) as error:
        trial.note(f"no answer: {error}")
    else:
        trial.require(answer.status != NtStatus.SUCCESS, "the READ succeeded, and its data cannot have arrived")
    # What fits may have been written before the rest was refused.
    trial.require(missing or exposed.untouched(), "the client's memory was changed")
    again = await open_file(trial, b"available")
    exposed = again.expose(9)
    check_read(trial, await again.read(Read(9, exposed.info)), 9)


@case(SUITE, "Smb2OverRdmaChannel_InvalidBufferDescriptor_Offset", "MS-SMBD 3.1.4.5")
async def invalid_offset(trial: Trial) -> None:
    """A READ to memory behind the registered end does not succeed, and the server goes on."""
    await refused_by_the_fabric(trial, lambda file, exposed, true: true._replace(offset=true.offset + true.length + 1))


@case(SUITE, "Smb2OverRdmaChannel_InvalidBufferDescriptor_Length", "MS-SMBD 3.1.4.5")
async def invalid_length(trial: Trial) -> None:
    """A READ to a descriptor that is one byte longer than the memory does not succeed, and the server goes on."""
    await refused_by_the_fabric(trial, lambda file, exposed, true: true._replace(length=true.length + 1), missing=1)


@case(SUITE, "Smb2OverRdmaChannel_InvalidBufferDescriptor_Token", "MS-SMBD 3.1.4.5")
async def invalid_token(trial: Trial) -> None:
    """A READ to an unknown token does not succeed, and the server goes on."""
    await refused_by_the_fabric(trial, lambda file, exposed, true: true._replace(token=(true.token + 1) & 0xFFFFFFFF))


def _deregister(file: DataFile, exposed: Exposed, true: RemoteBuffer) -> RemoteBuffer:
    exposed.region.deregister()
    return true


@case(SUITE, "Smb2OverRdmaChannel_InvalidBufferDescriptor_DeregisteredBuffer", "MS-SMBD 3.1.4.4, 3.1.4.5")
async def deregistered(trial: Trial) -> None:
    """A READ to memory that was deregistered does not succeed, and the server goes on."""
    await refused_by_the_fabric(trial, _deregister)
