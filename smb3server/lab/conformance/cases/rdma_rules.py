"""Smb2RdmaRules: rules of data that moves by RDMA which Microsoft's suite has no case for. [MS-SMB2 2.2.19, 2.2.21,
3.3.5.12, 3.3.5.13]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from smb3server.client.protocol.messages import CREDIT_SIZE
from smb3server.client.protocol.negotiation import Negotiated
from smb3server.lab.conformance.cases.rdma_channel import READ, WRITE
from smb3server.lab.conformance.cases.rdma_multichannel import Main
from smb3server.lab.conformance.data_channel import (
    INLINE,
    MOST_CREDITS,
    DataFile,
    Read,
    Write,
    check_read,
    check_write,
    new_name,
    open_file,
    status_name,
)
from smb3server.lab.conformance.peer import Ended, Silence
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import NotApplicable
from smb3server.lab.content import FILLING, content_of, other_content
from smb3server.wire.negotiate import Dialect
from smb3server.wire.read_write import TAIL, Channel, pack_descriptors
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import RemoteBuffer

SUITE = "Smb2RdmaRules"
SIZE = 16384
INVALID = NtStatus.INVALID_PARAMETER
FAR = 0xFF00
"""An offset behind the end of every request here."""

ChangeRead = Callable[[Read], Read]
ChangeWrite = Callable[[Write], Write]


async def read_refused(trial: Trial, change: ChangeRead, dialects: Sequence[int] | None = None) -> None:
    """Require INVALID_PARAMETER for a changed READ that moves nothing, and success for a good one after it."""
    content = content_of(SIZE)
    file = await (open_file(trial, content) if dialects is None else open_file(trial, content, dialects=dialects))
    exposed = file.expose(SIZE)
    answer = await file.read(change(Read(SIZE, exposed.info)))
    trial.require(answer.status == INVALID, f"the answer is {status_name(answer.status)}, not STATUS_INVALID_PARAMETER")
    trial.require(exposed.untouched(), "the refused READ has written into the client's memory")
    check_read(trial, await file.read(Read(SIZE, exposed.info)), SIZE)
    trial.require(exposed.view == content, "the data of the next READ is wrong")


async def write_refused(trial: Trial, change: ChangeWrite, dialects: Sequence[int] | None = None) -> None:
    """Require INVALID_PARAMETER for a changed WRITE that writes nothing, and success for a good one after it."""
    old, new = content_of(SIZE), other_content(SIZE)
    file = await (open_file(trial, old) if dialects is None else open_file(trial, old, dialects=dialects))
    exposed = file.expose(SIZE, new)
    answer = await file.write(change(Write(SIZE, exposed.info)))
    trial.require(answer.status == INVALID, f"the answer is {status_name(answer.status)}, not STATUS_INVALID_PARAMETER")
    trial.require(await file.content(SIZE + 1) == old, "the refused WRITE has changed the file")
    check_write(trial, await file.write(Write(SIZE, exposed.info)), SIZE)
    trial.require(await file.content(SIZE + 1) == new, "the content after the next WRITE is wrong")


READS: tuple[tuple[str, str, str, ChangeRead], ...] = (
    ("LengthZero", READ, "whose Length is 0", lambda r: replace(r, length=0)),
    ("InfoOffsetZero", READ, "whose ReadChannelInfoOffset is 0", lambda r: replace(r, info_offset=0)),
    ("InfoLengthZero", READ, "whose ReadChannelInfoLength is 0", lambda r: replace(r, info_length=0)),
    ("ChannelTransform", READ, "with SMB2_CHANNEL_RDMA_TRANSFORM", lambda r: replace(r, channel=3)),
    ("ChannelUnknown", READ, "with Channel 4", lambda r: replace(r, channel=4)),
    ("ChannelHighBits", READ, "with Channel 0x10001", lambda r: replace(r, channel=0x10001)),
    (
        "InfoBehindMessage",
        "MS-SMB2 3.3.5.2.6",
        "whose ReadChannelInfoOffset lies behind the message",
        lambda r: replace(r, info_offset=FAR),
    ),
    (
        "InfoBeyondMessage",
        "MS-SMB2 3.3.5.2.6",
        "whose ReadChannelInfoLength exceeds the message",
        lambda r: replace(r, info_length=0xFFF0),
    ),
    (
        "DescriptorCutOff",
        "MS-SMB2 2.2.19, 3.3.5.2.6",
        "whose channel information has half a descriptor",
        lambda r: replace(r, info=r.info[:8]),
    ),
    (
        "LengthAboveMaxReadSize",
        READ,
        "of 4294967295 bytes, more than MaxReadSize",
        lambda r: replace(r, length=0xFFFFFFFF),
    ),
)
"""Name, section, what is wrong with a READ, and how to make it so."""

WRITES: tuple[tuple[str, str, str, ChangeWrite], ...] = (
    ("LengthNotZero", WRITE, "whose Length is not 0", lambda w: replace(w, length=16)),
    ("DataOffsetNotZero", WRITE, "whose DataOffset is not 0", lambda w: replace(w, data_offset=TAIL)),
    ("RemainingZero", WRITE, "whose RemainingBytes is 0", lambda w: replace(w, remaining=0)),
    ("InfoOffsetZero", WRITE, "whose WriteChannelInfoOffset is 0", lambda w: replace(w, info_offset=0)),
    ("InfoLengthZero", WRITE, "whose WriteChannelInfoLength is 0", lambda w: replace(w, info_length=0)),
    (
        "ChannelTransform",
        WRITE,
        "with SMB2_CHANNEL_RDMA_TRANSFORM on a connection without transforms",
        lambda w: replace(w, channel=3),
    ),
    ("ChannelUnknown", WRITE, "with Channel 4", lambda w: replace(w, channel=4)),
    ("ChannelHighBits", WRITE, "with Channel 0x10001", lambda w: replace(w, channel=0x10001)),
    (
        "RemainingAboveMaxWriteSize",
        WRITE,
        "of 4294967295 bytes, more than MaxWriteSize",
        lambda w: replace(w, remaining=0xFFFFFFFF),
    ),
    (
        "FirstDescriptorEmpty",
        WRITE,
        "whose first descriptor is empty",
        lambda w: replace(w, info=w.info[:12] + bytes(4) + w.info),
    ),
    (
        "DescriptorsTooShort",
        WRITE,
        "whose descriptors hold one byte less than RemainingBytes",
        lambda w: replace(w, remaining=SIZE + 1),
    ),
    (
        "InfoBehindMessage",
        "MS-SMB2 3.3.5.2.6",
        "whose WriteChannelInfoOffset lies behind the message",
        lambda w: replace(w, info_offset=FAR),
    ),
    (
        "InfoBeyondMessage",
        "MS-SMB2 3.3.5.2.6",
        "whose WriteChannelInfoLength exceeds the message",
        lambda w: replace(w, info_length=0xFFF0),
    ),
    (
        "DescriptorCutOff",
        "MS-SMB2 2.2.21, 3.3.5.2.6",
        "whose channel information has half a descriptor",
        lambda w: replace(w, info=w.info[:8]),
    ),
)
"""Name, section, what is wrong with a WRITE, and how to make it so."""


def _enter_read(name: str, section: str, what: str, change: ChangeRead) -> None:
    rule = f"A READ {what} fails with STATUS_INVALID_PARAMETER, moves nothing, and the connection goes on."

    @case(SUITE, f"{SUITE}_Read_{name}", section, rule=rule)
    async def run(trial: Trial) -> None:
        await read_refused(trial, change)


def _enter_write(name: str, section: str, what: str, change: ChangeWrite) -> None:
    rule = f"A WRITE {what} fails with STATUS_INVALID_PARAMETER, writes nothing, and the connection goes on."

    @case(SUITE, f"{SUITE}_Write_{name}", section, rule=rule)
    async def run(trial: Trial) -> None:
        await write_refused(trial, change)


for _row in READS:
    _enter_read(*_row)
for _line in WRITES:
    _enter_write(*_line)


@case(SUITE, "Smb2RdmaRules_Write_ChannelTransform_Dialect302", WRITE)
async def transform_in_3_0_2(trial: Trial) -> None:
    """With dialect 3.0.2, a WRITE with SMB2_CHANNEL_RDMA_TRANSFORM fails with STATUS_INVALID_PARAMETER and writes
    nothing."""
    channel = Channel.RDMA_TRANSFORM
    await write_refused(trial, lambda write: replace(write, channel=channel), (Dialect.SMB_3_0_2,))


@case(SUITE, "Smb2RdmaRules_Read_ChannelNone", "MS-SMB2 2.2.19")
async def read_without_channel(trial: Trial) -> None:
    """A READ with SMB2_CHANNEL_NONE ignores RemainingBytes and its channel information. Its data is in the response."""
    content = content_of(SIZE)
    file = await open_file(trial, content)
    exposed = file.expose(SIZE)
    answer = await file.read(Read(SIZE, exposed.info, channel=Channel.NONE, remaining=0xFFFF, info_offset=FAR))
    trial.require(answer.status == NtStatus.SUCCESS, f"the answer is {status_name(answer.status)}")
    trial.require(answer.data == content, "the data in the response is wrong")
    trial.require(answer.read and answer.read.data_remaining == 0, "DataRemaining is not 0")
    trial.require(exposed.untouched(), "the READ has written into the client's memory")


@case(SUITE, "Smb2RdmaRules_Write_ChannelNone", "MS-SMB2 2.2.21")
async def write_without_channel(trial: Trial) -> None:
    """A WRITE with SMB2_CHANNEL_NONE ignores RemainingBytes and its channel information. Its data is in the request."""
    content = content_of(SIZE)
    file = await open_file(trial)
    answer = await file.write(
        Write(
            0xFFFF,
            channel=Channel.NONE,
            length=SIZE,
            data_offset=TAIL,
            info_offset=FAR,
            info_length=16,
            data=content,
        )
    )
    check_write(trial, answer, SIZE)
    trial.require(await file.content(SIZE + 1) == content, "the file has other content than was written")


@case(SUITE, "Smb2RdmaRules_Read_EndOfFile", READ)
async def short_read(trial: Trial) -> None:
    """A READ that reaches beyond the end of the file writes and reports what there is. The rest of the memory stays as
    it was. One at the end fails with STATUS_END_OF_FILE."""
    content = content_of(1001)
    file = await open_file(trial, content)
    exposed = file.expose(SIZE)
    check_read(trial, await file.read(Read(SIZE, exposed.info)), len(content))
    trial.require(exposed.view[: len(content)] == content, "the data is wrong")
    trial.require(exposed.untouched(len(content)), "the READ has written more than the file has")
    exposed = file.expose(SIZE)
    answer = await file.read(Read(SIZE, exposed.info, offset=len(content)))
    trial.require(answer.status == NtStatus.END_OF_FILE, f"the answer at the end is {status_name(answer.status)}")
    trial.require(exposed.untouched(), "a READ at the end of the file has written into the client's memory")


@case(SUITE, "Smb2RdmaRules_Read_MinimumCount", READ)
async def minimum_count(trial: Trial) -> None:
    """A READ that finds less than MinimumCount fails with STATUS_END_OF_FILE, a short one and a long one."""
    file = await open_file(trial, bytes(1001))
    for size in (SIZE, 2 * INLINE):
        exposed = file.expose(size)
        answer = await file.read(Read(size, exposed.info, minimum=1002))
        trial.require(answer.status == NtStatus.END_OF_FILE, f"the answer is {status_name(answer.status)}")


async def _largest(trial: Trial, negotiated: Callable[[Negotiated], int]) -> tuple[DataFile, int]:
    """Open a file. Return it and a size that the server has negotiated. Raises ``NotApplicable`` if the client has not
    the credits for one byte more."""
    file = await open_file(trial)
    size = negotiated(file.tree.client.negotiated)
    if size >= MOST_CREDITS * CREDIT_SIZE:
        raise NotApplicable(f"the client has no credits for more than {size} bytes")
    return file, size


@case(SUITE, "Smb2RdmaRules_Read_OneByteAboveMaxReadSize", READ)
async def read_above(trial: Trial) -> None:
    """A READ of one byte more than MaxReadSize into memory that holds it fails with STATUS_INVALID_PARAMETER, and moves
    nothing."""
    file, size = await _largest(trial, lambda negotiated: negotiated.max_read_size)
    await file.fill(content_of(SIZE))
    exposed = file.expose(size + 1)
    answer = await file.read(Read(size + 1, exposed.info))
    trial.require(answer.status == INVALID, f"the answer is {status_name(answer.status)}, not STATUS_INVALID_PARAMETER")
    trial.require(exposed.untouched(), "the refused READ has written into the client's memory")


@case(SUITE, "Smb2RdmaRules_Write_OneByteAboveMaxWriteSize", WRITE)
async def write_above(trial: Trial) -> None:
    """A WRITE of one byte more than MaxWriteSize out of memory that holds it fails with STATUS_INVALID_PARAMETER, and
    writes nothing."""
    file, size = await _largest(trial, lambda negotiated: negotiated.max_write_size)
    exposed = file.expose(size + 1, b"\1" * SIZE)
    answer = await file.write(Write(size + 1, exposed.info))
    trial.require(answer.status == INVALID, f"the answer is {status_name(answer.status)}, not STATUS_INVALID_PARAMETER")
    trial.require(await file.content(1) == b"", "the refused WRITE has written")


@case(SUITE, "Smb2RdmaRules_Compounded", "MS-SMB2 3.3.5.2.7, 3.3.5.12, 3.3.5.13")
async def compounded(trial: Trial) -> None:
    """A READ and a WRITE by RDMA that come in one message move their data as two messages do."""
    first, second = content_of(SIZE), other_content(SIZE)
    file = await open_file(trial, first)
    sink, source = file.expose(SIZE), file.expose(SIZE, second)
    read, written = await file.compounded([Read(SIZE, sink.info), Write(SIZE, source.info, offset=SIZE)])
    check_read(trial, read, SIZE)
    trial.require(sink.view == first, "the data is wrong")
    check_write(trial, written, SIZE)
    trial.require(await file.content(2 * SIZE + 1) == first + second, "the file has other content than was written")


@case(SUITE, "Smb2RdmaRules_DescriptorsInOrder", "MS-SMBD 3.1.4.5, 3.1.4.6")
async def uneven_descriptors(trial: Trial) -> None:
    """Descriptors of one byte and of uneven lengths are used in their order, the last one only in part."""
    content = content_of(SIZE)
    lengths = (1, 4095, 7, 8191, SIZE)
    file = await open_file(trial)
    source = file.expose(2 * SIZE, content)
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    parts = [source.part(begin, length) for begin, length in zip(begins, lengths, strict=True)]
    check_write(trial, await file.write(Write(SIZE, pack_descriptors(parts))), SIZE)
    trial.require(await file.content(SIZE + 1) == content, "the file has other content than was written")
    sinks = [file.expose(length) for length in lengths]
    info = pack_descriptors([sink.buffer for sink in sinks])
    check_read(trial, await file.read(Read(SIZE, info)), SIZE)
    received = b"".join(sink.view for sink in sinks)
    trial.require(received[:SIZE] == content, "the data is wrong, or in the wrong place")
    trial.require(sinks[-1].untouched(SIZE - begins[-1]), "the READ has written behind its data")


@case(SUITE, "Smb2RdmaRules_Read_MoreDescriptors", "MS-SMBD 3.1.4.5")
async def more_for_read(trial: Trial) -> None:
    """A READ writes its data and no more: a descriptor behind those that hold the data is left alone."""
    content = content_of(SIZE)
    file = await open_file(trial, content)
    large, further = file.expose(SIZE + 4096), file.expose(4096)
    info = pack_descriptors([large.buffer, further.buffer])
    check_read(trial, await file.read(Read(SIZE, info)), SIZE)
    trial.require(large.view[:SIZE] == content, "the data is wrong")
    trial.require(large.untouched(SIZE), "the READ has written behind its data")
    trial.require(further.untouched(), "the READ has written into a descriptor that it does not need")


@case(SUITE, "Smb2RdmaRules_Write_MoreDescriptors", "MS-SMBD 3.1.4.6")
async def more_for_write(trial: Trial) -> None:
    """A WRITE fetches its data and no more: a descriptor behind those that hold the data is left alone, and may have a
    token that is not valid."""
    content = content_of(SIZE)
    file = await open_file(trial)
    large, further = file.expose(SIZE + 4096, content), file.expose(4096, b"")
    info = pack_descriptors([large.buffer, further.buffer])
    further.region.deregister()
    check_write(trial, await file.write(Write(SIZE, info)), SIZE)
    trial.require(await file.content(SIZE + 1) == content, "the file has other content than was written")


@case(SUITE, "Smb2RdmaRules_Read_DescriptorsTooShort", "MS-SMB2 2.2.20, MS-SMBD 3.1.4.5")
async def too_short_for_read(trial: Trial) -> None:
    """A READ whose descriptors hold less than Length fails, or says in DataRemaining no more than they hold."""
    content = content_of(SIZE)
    file = await open_file(trial, content)
    exposed = file.expose(SIZE)
    half = SIZE // 2
    answer = await file.read(Read(SIZE, pack_descriptors([exposed.part(0, half)])))
    if answer.read is not None:
        said = answer.read.data_remaining
        trial.require(said <= half, f"DataRemaining is {said}, and the descriptors hold {half} bytes")
    trial.require(exposed.untouched(half), "the READ has written outside its descriptor")


@case(SUITE, "Smb2RdmaRules_PartOfRegion", "MS-SMBD 3.1.4.5")
async def part_of_region(trial: Trial) -> None:
    """A READ writes within its descriptors only, although the registered memory is larger."""
    content = content_of(SIZE)
    file = await open_file(trial, content)
    exposed = file.expose(3 * SIZE)
    check_read(trial, await file.read(Read(SIZE, pack_descriptors([exposed.part(SIZE, SIZE)]))), SIZE)
    trial.require(exposed.view[SIZE : 2 * SIZE] == content, "the data is wrong")
    outside = bytes(exposed.view[:SIZE]) + bytes(exposed.view[2 * SIZE :])
    trial.require(outside == FILLING * (2 * SIZE), "the READ has written outside its descriptor")


@case(SUITE, "Smb2RdmaRules_OverlappingDescriptors", "MS-SMBD 3.1.4.5, 3.1.4.6")
async def overlapping(trial: Trial) -> None:
    """Descriptors may name the same memory twice: a WRITE takes it twice, and a READ leaves what came last."""
    half = content_of(SIZE // 2)
    file = await open_file(trial)
    source = file.expose(SIZE // 2, half)
    info = pack_descriptors([source.buffer, source.buffer])
    check_write(trial, await file.write(Write(SIZE, info)), SIZE)
    trial.require(await file.content(SIZE + 1) == half + half, "the file has other content than was written")
    other = other_content(SIZE // 2)
    source = file.expose(SIZE // 2, other)
    check_write(trial, await file.write(Write(SIZE // 2, source.info, offset=SIZE // 2)), SIZE // 2)
    sink = file.expose(SIZE // 2)
    check_read(trial, await file.read(Read(SIZE, pack_descriptors([sink.buffer, sink.buffer]))), SIZE)
    trial.require(sink.view == other, "the memory does not have what was written to it last")


async def _elsewhere(trial: Trial, request: Callable[[DataFile, bytes], Read | Write], other: DataFile) -> None:
    """Send a request with a descriptor of ``other``'s connection. It must not succeed."""
    file = await open_file(trial, bytes(SIZE))
    exposed = other.expose(SIZE) if isinstance(request(file, b""), Read) else other.expose(SIZE, b"\1" * SIZE)
    made = request(file, exposed.info)
    try:
        answer = await (file.read(made) if isinstance(made, Read) else file.write(made))
    except (Ended, Silence) as error:
        trial.note(f"no answer: {error}")
    else:
        trial.require(answer.status != NtStatus.SUCCESS, "a token of another connection was used")
    if isinstance(made, Read):
        trial.require(exposed.untouched(), "the memory of another connection was changed")


@case(SUITE, "Smb2RdmaRules_TokenOfAnotherConnection", "MS-SMBD 3.1.4.3, 3.1.4.5")
async def foreign_token(trial: Trial) -> None:
    """A token is used on the connection of its request and on no other: READ and WRITE with the token of another
    connection do not succeed, and that connection and its memory stay as they were."""
    other = await open_file(trial, b"x")
    await _elsewhere(trial, lambda file, info: Read(SIZE, info), other)
    await _elsewhere(trial, lambda file, info: Write(SIZE, info), other)
    sink = other.expose(1)
    check_read(trial, await other.read(Read(1, sink.info)), 1)


async def _wrong_right(trial: Trial, file: DataFile, made: Read | Write) -> None:
    try:
        answer = await (file.read(made) if isinstance(made, Read) else file.write(made))
    except (Ended, Silence) as error:
        trial.note(f"no answer: {error}")
    else:
        trial.require(answer.status != NtStatus.SUCCESS, "the request succeeded without a right to the memory")
    await trial.still_serves()


@case(SUITE, "Smb2RdmaRules_Read_NoRightToWrite", "MS-SMBD 3.1.4.3, 3.1.4.5")
async def read_without_right(trial: Trial) -> None:
    """A READ to memory that allows RDMA Read only does not succeed, and the server goes on."""
    file = await open_file(trial, content_of(SIZE))
    mine = other_content(SIZE)
    exposed = file.expose(SIZE, mine)
    await _wrong_right(trial, file, Read(SIZE, exposed.info))
    trial.require(exposed.view == mine, "memory that the server may not write to was changed")


@case(SUITE, "Smb2RdmaRules_Write_NoRightToRead", "MS-SMBD 3.1.4.3, 3.1.4.6")
async def write_without_right(trial: Trial) -> None:
    """A WRITE from memory that allows RDMA Write only does not succeed, and the server goes on."""
    file = await open_file(trial)
    exposed = file.expose(SIZE)
    await _wrong_right(trial, file, Write(SIZE, exposed.info))


BEYOND = (1 << 64) - SIZE // 2
"""An Offset from which half of the data lies behind the last address."""


async def _beyond(trial: Trial, make: Callable[[bytes], Read | Write], content: bytes | None) -> None:
    """Send a request with a descriptor that passes 2^64, alone and behind a good one. The server answers
    INVALID_PARAMETER, or passes it on to the fabric, which ends the connection. It goes on in either case."""
    for before in (0, SIZE // 2):
        file = await open_file(trial, content_of(SIZE))
        exposed = file.expose(SIZE, content)
        parts = [exposed.part(0, before)] if before else []
        made = make(pack_descriptors([*parts, exposed.buffer._replace(offset=BEYOND)]))
        try:
            answer = await (file.read(made) if isinstance(made, Read) else file.write(made))
        except Ended as error:
            trial.note(f"no answer: {error}")
        else:
            trial.require(answer.status == INVALID, f"the answer is {status_name(answer.status)}")
            trial.require(content is not None or exposed.untouched(before), "the READ has written elsewhere")
        again = await open_file(trial, b"available")
        sink = again.expose(9)
        check_read(trial, await again.read(Read(9, sink.info)), 9)


@case(SUITE, "Smb2RdmaRules_Read_DescriptorBeyondAddressSpace", "MS-SMBD 2.2.3.1, 3.1.4.5")
async def read_beyond_address_space(trial: Trial) -> None:
    """A READ to a descriptor whose Offset and Length pass 2^64 fails with STATUS_INVALID_PARAMETER, or the fabric ends
    the connection. The server goes on."""
    await _beyond(trial, lambda info: Read(SIZE, info), None)


@case(SUITE, "Smb2RdmaRules_Write_DescriptorBeyondAddressSpace", "MS-SMBD 2.2.3.1, 3.1.4.6")
async def write_beyond_address_space(trial: Trial) -> None:
    """A WRITE from a descriptor whose Offset and Length pass 2^64 fails with STATUS_INVALID_PARAMETER, or the fabric
    ends the connection. The server goes on."""
    await _beyond(trial, lambda info: Write(SIZE, info), b"\1" * SIZE)


@case(SUITE, "Smb2RdmaRules_Write_LastTokenInvalid", WRITE)
async def bad_last_token(trial: Trial) -> None:
    """A WRITE obtains all of its data before it writes any: if the last token is invalid, the file stays as it was."""
    old = content_of(SIZE)
    name = new_name()
    watcher, writer = await open_file(trial, old, name=name), await open_file(trial, name=name)
    half = SIZE // 2
    good, bad = (writer.expose(half, other_content(half)) for _ in range(2))
    info = pack_descriptors([good.buffer, bad.buffer])
    bad.region.deregister()
    try:
        answer = await writer.write(Write(SIZE, info))
    except (Ended, Silence) as error:
        trial.note(f"no answer: {error}")
    else:
        trial.require(answer.status != NtStatus.SUCCESS, "the WRITE succeeded without its data")
    finally:
        after = await watcher.content(SIZE + 1)
        await watcher.tree.delete(name)
    trial.require(after == old, "the WRITE that failed has changed the file")


@case(SUITE, "Smb2RdmaRules_ChannelOverTcp", "MS-SMB2 3.3.5.12, 3.3.5.13")
async def channel_over_tcp(trial: Trial) -> None:
    """READ and WRITE that ask for RDMA on a connection over TCP fail with STATUS_INVALID_PARAMETER."""
    main = await Main.open(trial, trial.target.host)
    try:
        file = DataFile(trial, main.tree, main.file, None)
        old = content_of(SIZE)
        await file.fill(old)
        info = pack_descriptors([RemoteBuffer(0x10000, 0x1234, SIZE)])
        for made in (Read(SIZE, info), Write(SIZE, info)):
            answer = await (file.read(made) if isinstance(made, Read) else file.write(made))
            trial.require(answer.status == INVALID, f"the answer is {status_name(answer.status)}")
        trial.require(await file.content(SIZE + 1) == old, "the refused WRITE has changed the file")
    finally:
        main.client.transport.abort("the case ends")
