"""SmbdDataTransfer: messages of an established connection. [MS-SMBD 3.1.5.4, 3.1.5.8]"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Unpack

from smb3server.lab.conformance.peer import Fields
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import WRITE_HEADER, Session, Trial, write_and_check
from smb3server.lab.conformance.verdict import NotApplicable
from smb3server.lab.content import content_of
from smbdirect.core.constants import DATA_OFFSET, DataFlags
from smbdirect.core.messages import DataTransfer

SUITE = "SmbdDataTransfer"
SMALL, MODERATE = 500, 65536
"""Bytes of a WRITE request, as in Microsoft's suite."""
READ_HEADER = 64 + 16
"""Bytes of a READ response before its data. [MS-SMB2 2.2.1, 2.2.20]"""
MAX = 0xFFFFFFFF
LARGEST: Fields = {"preferred_send_size": 8136, "max_receive_size": MAX, "max_fragmented_size": MAX}
"""Fields of a Negotiate Request that leave the limits to the server. Windows refuses a larger PreferredSendSize."""
TOO_MUCH = 64 << 20
"""MaxFragmentedSize of a server to which no such message is sent."""
RESPONSE_REQUESTED = int(DataFlags.RESPONSE_REQUESTED)

Fragment = tuple[bytes, int]
"""Payload and RemainingDataLength."""


async def write_request(trial: Trial, size: int, **fields: Unpack[Fields]) -> tuple[Session, bytes]:
    """Log on and create a file. Return the session, and a WRITE request of ``size`` bytes that was not sent."""
    session = await trial.log_on(**fields)
    file = await trial.create(session)
    message, _ = await session.captured(session.tree.write(file, 0, content_of(size - WRITE_HEADER)))
    return session, message


async def long_request(trial: Trial, size: int, **fields: Unpack[Fields]) -> tuple[Session, bytes]:
    """Do as ``write_request``, for a request of which all but the beginning can be missing or wrong: a short WRITE, and
    bytes behind it that belong to nothing. So a server that hands up the wrong message has no reason to end the
    connection but the rule under test."""
    session, message = await write_request(trial, SMALL, **fields)
    return session, message.ljust(size, b"\0")


async def terminates(
    trial: Trial, *, at: int = DATA_OFFSET, offset: int | None = None, more: int = 0, filled: bool = False
) -> None:
    """Send a good WRITE request ``at`` this offset, with a DataLength that is ``more`` than its length, and require
    that the connection is terminated. ``offset`` is the DataOffset if that is not true. ``filled`` makes the message
    as long as the server takes.

    The request is a good one: a server that does not check the message carries it out.
    """
    session, message = await write_request(trial, SMALL)
    if filled:
        message = message.ljust(session.conversation.largest_payload, b"\0")
    length = min(len(message) + more, MAX)
    session.peer.send_data(message, at=at, offset=offset, length=length)
    await trial.terminated(session.peer, f"DataOffset {at if offset is None else offset}, DataLength {length}")


def falling_and_rising() -> Iterator[int]:
    """Yield 0, then 128 down to 0, then 1, 2, 3 and so on."""
    return itertools.chain([0], range(128, -1, -1), itertools.count(1))


@case(SUITE, "BVT_SmbdDataTransfer_Basic_SendSmallBytesOfData", "MS-SMBD 3.1.5.8")
async def small(trial: Trial) -> None:
    """A WRITE of 500 bytes in one message is carried out."""
    await write_and_check(trial, await trial.log_on(), SMALL)


@case(SUITE, "BVT_SmbdDataTransfer_Basic_SendModerateBytesData", "MS-SMBD 3.1.5.8")
async def moderate(trial: Trial) -> None:
    """A WRITE of 64 KiB in fragments is put together and carried out."""
    await write_and_check(trial, await trial.log_on(), MODERATE)


@case(SUITE, "SmbdDataTransfer_VariableLengthSegment", "MS-SMBD 3.1.5.8")
async def variable(trial: Trial) -> None:
    """A WRITE of 64 KiB in fragments of every length, among them two without data, is put together."""
    await write_and_check(trial, await trial.log_on(), MODERATE, falling_and_rising)


@case(SUITE, "SmbdDataTransfer_SmallLengthSegment", "MS-SMBD 3.1.5.8")
async def single_bytes(trial: Trial) -> None:
    """A WRITE of 64 KiB in fragments of one byte is put together. Each message is filled up to the server's
    MaxReceiveSize."""
    session = await trial.log_on()
    session.peer.quiet = True
    await write_and_check(trial, session, MODERATE, lambda: itertools.repeat(1), fill=True)


@case(SUITE, "SmbdDataTransfer_Redundancy", "MS-SMBD 3.1.5.8")
async def redundancy(trial: Trial) -> None:
    """Bytes behind the data of a message are ignored."""
    await write_and_check(trial, await trial.log_on(), SMALL, fill=True)


@case(SUITE, "SmbdDataTransfer_ReceiveMaxReceiveSize", "MS-SMBD 3.1.5.4")
async def receive(trial: Trial) -> None:
    """A response as long as the client's MaxReceiveSize comes in messages that are no longer than that, with exact
    lengths and aligned data."""
    session = await trial.log_on(max_receive_size=1024)
    content = content_of(1024 - READ_HEADER)
    file = await trial.create(session, content)
    since = len(trial.received)
    async with trial.expecting("the answer to a READ"):
        trial.require(await session.tree.read(file, 0, len(content)) == content, "the file was read wrongly")
    lacking = 0
    for header in trial.messages_of(session.peer, since):
        if header.data_length or header.remaining_data_length:
            total = header.data_length + header.remaining_data_length
            trial.require(lacking in (0, total), f"DataLength and RemainingDataLength are {total}, and {lacking} lack")
            trial.require(header.data_offset % 8 == 0, f"DataOffset is {header.data_offset}")
            end = header.data_offset + header.data_length
            trial.require(end <= 1024, f"a message of {end} bytes exceeds MaxReceiveSize 1024")
            lacking = header.remaining_data_length
    trial.require(lacking == 0, f"{lacking} bytes are missing")


@case(SUITE, "SmbdDataTransfer_UncompletedMessage", "MS-SMBD 3.1.5.8")
async def uncompleted(trial: Trial) -> None:
    """A Data Transfer message of less than 20 bytes terminates the connection."""
    peer = await trial.negotiated()
    peer.send(bytes([10, 0, 1]).ljust(19, b"\0"), "a Data Transfer message without its last byte, 19 bytes")
    await trial.terminated(peer, "a message of 19 bytes")


@case(SUITE, "SmbdDataTransfer_NegativeParameter_DataOffset_Against8ByteAligned", "MS-SMBD 3.1.5.8")
async def alignment(trial: Trial) -> None:
    """A DataOffset that is no multiple of 8 terminates the connection, although the data is there."""
    await terminates(trial, at=DATA_OFFSET - 1)
    await terminates(trial, at=DATA_OFFSET + 1)


@case(SUITE, "SmbdDataTransfer_NegativeParameter_DataOffset_AgainstMessageLength", "MS-SMBD 3.1.5.8")
async def offset_and_message(trial: Trial) -> None:
    """A DataOffset that puts the data beyond the end of the message terminates the connection."""
    await terminates(trial, at=DATA_OFFSET + 8, more=8)
    await terminates(trial, offset=MAX)


@case(SUITE, "SmbdDataTransfer_NegativeParameter_DataLength_AgainstMessageLength", "MS-SMBD 3.1.5.8")
async def length_and_message(trial: Trial) -> None:
    """A DataLength beyond the end of the message terminates the connection, also in the longest message."""
    await terminates(trial, more=1)
    await terminates(trial, more=1, filled=True)
    await terminates(trial, more=MAX)


@case(SUITE, "SmbdDataTransfer_NegativeParameter_DataLength_AgainstMaxReceiveSize", "MS-SMBD 3.1.5.8, 3.1.5.9")
async def length_and_receive_size(trial: Trial) -> None:
    """A message longer than the server's MaxReceiveSize ends the connection; one as long is carried out."""
    session = await trial.log_on(**LARGEST)
    file = await trial.create(session)
    size = session.conversation.largest_payload + 1 - WRITE_HEADER
    message, _ = await session.captured(session.tree.write(file, 0, content_of(size)))
    session.peer.send_data(message)
    await trial.terminated(session.peer, f"a message of {DATA_OFFSET + len(message)} bytes")
    session = await trial.log_on(**LARGEST)
    await write_and_check(trial, session, session.conversation.largest_payload)


@case(SUITE, "SmbdDataTransfer_NegativeParameter_AgainstMaxFragmentedSize", "MS-SMBD 3.1.5.8")
async def fragmented_size(trial: Trial) -> None:
    """A message with one byte more than the server's MaxFragmentedSize ends the connection, although no fragment says
    so; a WRITE that fits is carried out."""
    session, message = await write_request(trial, SMALL, **LARGEST)
    conversation = session.conversation
    most = conversation.max_outbound_message_size
    if most > TOO_MUCH:
        raise NotApplicable(f"the server's MaxFragmentedSize is {most}: too much to send")
    message = message.ljust(most + 1, b"\0")
    session.peer.quiet = True
    trial.note(f"-> {most + 1} bytes in fragments whose RemainingDataLength is one too small")
    conversation.send_fragments((payload, max(remaining - 1, 0)) for payload, remaining in conversation.cut(message))
    await trial.terminated(session.peer, f"a message of {most + 1} bytes")
    session = await trial.log_on(**LARGEST)
    session.peer.quiet = True
    await write_and_check(trial, session, min(most - 1024, session.tree.max_write))


@case(SUITE, "SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstMaxFragmentedSize", "MS-SMBD 3.1.5.8")
async def remaining_and_fragmented_size(trial: Trial) -> None:
    """A RemainingDataLength beyond the server's MaxFragmentedSize terminates the connection, without any data."""
    for remaining in (None, MAX):
        # A server may limit clients that have not logged on to less.
        peer = (await trial.log_on()).peer
        assert peer.response is not None
        too_much = peer.response.max_fragmented_size + 1 if remaining is None else remaining
        peer.send_data(remaining=too_much)
        await trial.terminated(peer, f"RemainingDataLength {too_much}")


async def fragments(trial: Trial) -> tuple[Session, list[Fragment]]:
    """Log on. Return the session, and the fragments of a request of 64 KiB that was not sent."""
    session, message = await long_request(trial, MODERATE)
    return session, list(session.conversation.cut(message))


@case(SUITE, "SmbdDataTransfer_NegativeParameter_RemainingDataLength_Zero", "MS-SMBD 3.1.5.8")
async def remaining_zero(trial: Trial) -> None:
    """RemainingDataLength 0 while data is missing terminates the connection, in the second fragment and in the last
    but one."""
    for number in (1, -2):
        session, pieces = await fragments(trial)
        session.peer.quiet = True
        end = len(pieces) + number if number < 0 else number
        trial.note(f"-> {end} fragments, and one with RemainingDataLength 0 in place of {pieces[end][1]}")
        session.conversation.send_fragments([*pieces[:end], (pieces[end][0], 0)])
        await trial.terminated(session.peer, "RemainingDataLength 0 while data was missing")


@case(
    SUITE,
    "SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstFragmentReassemblyRemaining",
    "MS-SMBD 3.1.5.8",
)
async def remaining_grows(trial: Trial) -> None:
    """A fragment that says more remains than the ones before said terminates the connection. Section 3.1.5.8 compares
    at the end only, so this does not apply to a server that takes the message as it was sent."""
    session = await trial.log_on()
    file = await trial.create(session)
    data = content_of(MODERATE - WRITE_HEADER)
    message, writing = await session.captured(session.tree.write(file, 0, data))
    pieces = list(session.conversation.cut(message))
    pieces[1] = (pieces[1][0], pieces[1][1] + 1)
    session.conversation.send_fragments(pieces)
    if await session.peer.ended(trial.timing.quiet):
        return
    async with trial.expecting("the answers to a WRITE and a READ"):
        trial.require(await writing == len(data), "not all of the data was written")
        trial.require(await session.tree.read(file, 0, len(data)) == data, "the file has other data than was sent")
    raise NotApplicable("the server compares the lengths at the end only, which 3.1.5.8 allows")


async def idle_session(trial: Trial) -> Session:
    """Log on, and use the connection once, so that nothing but SMB Direct's timers keeps or ends it."""
    session = await trial.log_on()
    session.conversation.answering = False
    await session.tree.close(await trial.create(session))
    return session


def is_empty(header: DataTransfer) -> bool:
    """Return whether a message has no data."""
    return not header.data_length and not header.remaining_data_length and not header.data_offset


async def keepalive(trial: Trial, session: Session) -> DataTransfer:
    """Return the server's keepalive, for which nothing is sent. It is a violation if none comes."""
    seconds = trial.timing.keepalive + trial.timing.patience
    header = await trial.message(
        session.peer,
        len(trial.received),
        lambda header: header.flags & RESPONSE_REQUESTED,
        seconds,
        "a message with SMB_DIRECT_RESPONSE_REQUESTED",
    )
    trial.require(is_empty(header), "the keepalive has data, and nothing was to be sent")
    trial.require(header.credits_requested > 0, "CreditsRequested is 0")
    return header


async def answer(trial: Trial, session: Session) -> None:
    """Request a response and require one without data, promptly."""
    since = len(trial.received)
    session.peer.send_data(credits_requested=32, grant=1, flags=RESPONSE_REQUESTED)
    header = await trial.message(session.peer, since, lambda header: True, trial.timing.prompt, "the answer")
    trial.require(is_empty(header), "the answer has data")
    trial.require(header.credits_requested > 0, "CreditsRequested is 0")
    # 3.1.5.8 has KeepaliveRequested set to PENDING, so that the answer requests a response. Microsoft's suite wants
    # Flags 0: two peers by the letter would exchange keepalives forever. Neither is held against the server.
    trial.require(header.flags in (0, RESPONSE_REQUESTED), f"Flags is {header.flags:#x}")


@case(SUITE, "SmbdDataTransfer_IdleConnection_Client", "MS-SMBD 3.1.5.8", waits=True)
async def idle_client(trial: Trial) -> None:
    """A connection that was idle for nearly the keepalive interval still stands, and a message with
    SMB_DIRECT_RESPONSE_REQUESTED is answered by one without data."""
    session = await idle_session(trial)
    await trial.pause(trial.timing.keepalive - trial.timing.slack)
    await answer(trial, session)


@case(SUITE, "SmbdDataTransfer_IdleConnection_Server", "MS-SMBD 3.1.5.5, 3.1.6.2", waits=True)
async def idle_server(trial: Trial) -> None:
    """After the keepalive interval the server requests a response. If it gets one the connection stands, and the server
    requests another after the next interval."""
    session = await idle_session(trial)
    await keepalive(trial, session)
    await trial.pause(max(trial.timing.keepalive_answer - trial.timing.slack, 0))
    await answer(trial, session)
    await keepalive(trial, session)


@case(SUITE, "SmbdDataTransfer_IdleConnection_Server_Timeout", "MS-SMBD 3.1.6.2", waits=True)
async def idle_server_timeout(trial: Trial) -> None:
    """A server whose keepalive is not answered terminates the connection."""
    session = await idle_session(trial)
    await keepalive(trial, session)
    if not await session.peer.ended(trial.timing.keepalive_answer + trial.timing.patience):
        trial.require(False, "the connection still stands, and the keepalive was not answered")
