"""SmbdFurtherRules: what MS-SMBD demands of Data Transfer messages, and Microsoft's suite does not try."""

from __future__ import annotations

import asyncio
import os

from smb3server.client.protocol import RemoteFile, ServerError
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.lab.conformance.cases.credits import check_starved, log_on_with, starve
from smb3server.lab.conformance.cases.data_transfer import (
    MAX,
    MODERATE,
    RESPONSE_REQUESTED,
    SMALL,
    answer,
    fragments,
    idle_session,
    keepalive,
    write_request,
)
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import WRITE_HEADER, Session, Trial, write_and_check
from smb3server.lab.conformance.verdict import Inconclusive, NotApplicable, Violation
from smb3server.lab.content import content_of
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.status import NtStatus
from smbdirect.core.constants import DATA_OFFSET, MIN_FRAGMENTED_SIZE

SUITE = "SmbdFurtherRules"
FEW = 4
"""CreditsRequested of a client that requested more before."""


# -- what the server receives --------------------------------------------------------------------------------------


async def carried_out(trial: Trial, *, reserved: int = 0, padding: bytes = b"", at: int = DATA_OFFSET) -> None:
    """Send a WRITE as one message with these fields (see ``Peer.send_data``), and require that it is carried out and
    the file has the data."""
    session = await trial.log_on()
    file = await trial.create(session)
    data = content_of(SMALL - WRITE_HEADER)
    message, writing = await session.captured(session.tree.write(file, 0, data))
    session.peer.send_data(message, credits_requested=32, grant=1, reserved=reserved, padding=padding, at=at)
    await done(trial, session, file, data, writing)


async def done(trial: Trial, session: Session, file: RemoteFile, data: bytes, writing: asyncio.Task[int]) -> None:
    """Require that the WRITE is answered and that the file has the data."""
    async with trial.expecting("the answer to the WRITE"):
        written = await writing
    trial.require(written == len(data), f"{written} of {len(data)} bytes were written")
    async with trial.expecting("the answer to a READ"):
        same = await session.tree.read(file, 0, len(data)) == data
    trial.require(same, "the file has other data than was sent")


@case(SUITE, "DataTransfer_ReservedIgnored", "MS-SMBD 2.2.3")
async def reserved(trial: Trial) -> None:
    """Reserved of a Data Transfer message is ignored."""
    await carried_out(trial, reserved=0xFFFF)


@case(SUITE, "DataTransfer_PaddingIgnored", "MS-SMBD 2.2.3")
async def padding(trial: Trial) -> None:
    """The padding before the data is ignored."""
    await carried_out(trial, padding=b"\xff" * 4)


@case(SUITE, "DataTransfer_OtherDataOffset", "MS-SMBD 2.2.3, 3.1.5.4")
async def other_offset(trial: Trial) -> None:
    """The data may begin at other multiples of 8 than 24: at 32, and at 256."""
    await carried_out(trial, at=DATA_OFFSET + 8)
    await carried_out(trial, at=256)


@case(SUITE, "DataTransfer_OffsetAndLengthOverflow", "MS-SMBD 3.1.5.8")
async def sum_of_offset(trial: Trial) -> None:
    """DataOffset and DataLength whose sum does not fit 32 bits terminate the connection."""
    for offset, length in ((MAX - 7, 16), (DATA_OFFSET, MAX - 15), (MAX - 7, MAX)):
        session, message = await write_request(trial, SMALL)
        session.peer.send_data(message, offset=offset, length=length)
        await trial.terminated(session.peer, f"DataOffset {offset}, DataLength {length}")


@case(SUITE, "DataTransfer_LengthAndRemainingOverflow", "MS-SMBD 3.1.5.8")
async def sum_of_remaining(trial: Trial) -> None:
    """DataLength and RemainingDataLength whose sum does not fit 32 bits terminate the connection."""
    session, message = await write_request(trial, SMALL)
    session.peer.send_data(message, remaining=MAX - 7)
    await trial.terminated(session.peer, "DataLength and RemainingDataLength beyond 32 bits")


@case(SUITE, "DataTransfer_LengthAndRemainingAgainstMaxFragmentedSize", "MS-SMBD 3.1.5.8")
async def announced(trial: Trial) -> None:
    """A first fragment may announce a message of MaxFragmentedSize, and not one byte more."""
    for more in (1, 0):
        session, message = await write_request(trial, SMALL)
        assert session.peer.response is not None
        remaining = session.peer.response.max_fragmented_size - len(message) + more
        session.peer.send_data(message, remaining=remaining)
        if more:
            await trial.terminated(session.peer, f"DataLength {len(message)}, RemainingDataLength {remaining}")
        elif await session.peer.ended(trial.timing.quiet):
            raise Violation(f"DataLength {len(message)}, RemainingDataLength {remaining} ended the connection")


@case(SUITE, "Fragments_LongerThanRemaining", "MS-SMBD 3.1.5.8")
async def longer(trial: Trial) -> None:
    """A last fragment with more data than remained terminates the connection."""
    session, pieces = await fragments(trial)
    first, second = pieces[0][0], pieces[1][0]
    session.conversation.send_fragments([(first, len(second) - 8), (second, 0)])
    await trial.terminated(session.peer, f"{len(second)} bytes where {len(second) - 8} remained")


@case(SUITE, "Fragments_EmptyMessageBetween", "MS-SMBD 3.1.5.8")
async def empty_between(trial: Trial) -> None:
    """An empty message between two fragments terminates the connection, by the letter. Linux sends such messages to
    grant credits. A server that accepts them puts the fragments together as if it had not come."""
    session = await trial.log_on()
    file = await trial.create(session)
    data = content_of(MODERATE - WRITE_HEADER)
    message, writing = await session.captured(session.tree.write(file, 0, data))
    pieces = list(session.conversation.cut(message))
    session.conversation.send_fragments([pieces[0], (b"", 0), *pieces[1:]])
    if await session.peer.ended(trial.timing.quiet):
        return
    await done(trial, session, file, data, writing)


@case(SUITE, "DataTransfer_ResponseRequested", "MS-SMBD 3.1.5.8")
async def response_requested(trial: Trial) -> None:
    """A message with SMB_DIRECT_RESPONSE_REQUESTED is answered promptly."""
    session = await trial.log_on()
    await answer(trial, session)


# -- credits -------------------------------------------------------------------------------------------------------


@case(SUITE, "Credits_NothingBeforeTheFirst", "MS-SMBD 3.1.5.1")
async def nothing_before_first(trial: Trial) -> None:
    """A server that has no credit yet sends nothing, even if a response is requested; it does with the first grant."""
    peer = await trial.negotiated()
    since = len(trial.received)
    peer.send_data(flags=RESPONSE_REQUESTED)
    await trial.settled()
    trial.require(len(trial.received) == since, "the server sent a message before it had a credit")
    peer.send_data(grant=2)
    await trial.message(peer, since, lambda header: True, trial.timing.prompt, "the answer, after a grant,")


@case(SUITE, "Credits_GrantRestartsQueue", "MS-SMBD 3.1.5.1, 3.1.5.8")
async def grant_restarts(trial: Trial) -> None:
    """A grant restarts a server that waits for credits, for as many messages as were granted and no more."""
    starved = await starve(trial)
    for count in (2, 3):
        since = len(trial.received)
        held = starved.peer.receive_credits
        starved.session.conversation.grant_again(count)
        await trial.until(
            starved.peer,
            # The last credit may stay: it needs a grant to go with (3.1.5.1).
            lambda: starved.peer.receive_credits <= 1,
            trial.timing.prompt,
            f"messages for {held + count} credits",
        )
        await trial.settled()
        sent = len(trial.messages_of(starved.peer, since))
        trial.require(sent <= held + count, f"{sent} messages came with {held + count} credits")
        check_starved(trial, starved.session, since)
    starved.session.conversation.grant_again()
    async with trial.expecting("the rest of the READ, when the server got credits"):
        content = await starved.reading
    trial.require(content == starved.content, "the file was read wrongly")


@case(SUITE, "Credits_OneSuffices", "MS-SMBD 3.1.5.1, 3.1.5.9")
async def one_suffices(trial: Trial) -> None:
    """A server that gets one credit at a time never ends at none on both sides: 64 KiB are read."""
    await write_and_check(trial, await log_on_with(trial, 1, 32), MODERATE)


@case(SUITE, "Credits_LoweredRequestIsFollowed", "MS-SMBD 3.1.5.8, 3.1.5.9")
async def lowered_request(trial: Trial) -> None:
    """A client that requests fewer credits than before gets new ones only when it holds fewer than it requests."""
    session = await trial.log_on()
    peer = session.peer
    session.conversation.credits_requested = FEW
    # The credits that this message gives back may follow the request before it.
    await session.client.echo()
    await trial.settled()
    held = peer.send_credits
    if held < 2 * FEW:
        raise NotApplicable(f"the server grants no more than {held} credits")
    since = len(trial.received)
    for left in reversed(range(held)):
        peer.send_data(credits_requested=FEW, grant=int(not left))
    await trial.message(peer, since, lambda header: header.credits_granted > 0, trial.timing.prompt, "a new credit")
    await trial.settled()
    # One that holds fewer may get as many again as it requests.
    most = 2 * FEW - 1
    trial.require(peer.send_credits <= most, f"the client holds {peer.send_credits} credits, and requested {FEW}")


# -- sizes ---------------------------------------------------------------------------------------------------------


@case(SUITE, "Sizes_Smallest", "MS-SMBD 3.1.5.4, 3.1.5.6")
async def smallest(trial: Trial) -> None:
    """With messages of 128 bytes in both directions 4 KiB are written and read, and none of the server's is longer."""
    session = await trial.log_on(preferred_send_size=128, max_receive_size=128)
    await write_and_check(trial, session, 4096)
    longest = max(len(received.data) for _, received in trial.received if received.negotiated)
    trial.require(longest <= 128, f"a message of {longest} bytes exceeds MaxReceiveSize 128")


@case(SUITE, "Sizes_ResponseBeyondMaxFragmentedSize", "MS-SMBD 3.1.4.2, 3.1.5.4")
async def beyond_fragmented(trial: Trial) -> None:
    """The response to a READ of more than the client's MaxFragmentedSize is not sent: the READ fails, or the connection
    ends."""
    session = await trial.log_on(max_fragmented_size=MIN_FRAGMENTED_SIZE)
    size = MIN_FRAGMENTED_SIZE
    file = await trial.create(session, content_of(size))
    session.peer.quiet = True
    since = len(trial.received)
    if session.tree.max_read < size:
        raise Inconclusive(f"the server's MaxReadSize is {session.tree.max_read}")
    try:
        async with asyncio.timeout(trial.timing.patience):
            content = await session.tree.read(file, 0, size)
        # A server may return fewer bytes than were asked for.
        trial.note(f"{len(content)} bytes were read")
    except ServerError as error:
        trial.note(f"the READ failed with {error}")
    except TimeoutError:
        raise Violation("the READ was not answered") from None
    for header in trial.messages_of(session.peer, since):
        total = header.data_length + header.remaining_data_length
        trial.require(total <= MIN_FRAGMENTED_SIZE, f"the server began a message of {total} bytes")


# -- timers --------------------------------------------------------------------------------------------------------


@case(SUITE, "Keepalive_TimerRestarts", "MS-SMBD 3.1.5.5", waits=True)
async def timer_restarts(trial: Trial) -> None:
    """Every message restarts the server's Idle Connection Timer: to a client that sends often enough no keepalive
    comes."""
    session = await idle_session(trial)
    since = len(trial.received)
    for _ in range(3):
        await trial.pause(trial.timing.keepalive / 2)
        session.peer.send_data(credits_requested=32, grant=1)
    asked = [header for header in trial.messages_of(session.peer, since) if header.flags & RESPONSE_REQUESTED]
    trial.require(not asked, "the server requested a response of a client that was not idle")
    trial.require(session.peer.alive, f"the connection ended: {session.peer.reason}")


@case(SUITE, "Keepalive_AnyMessageAnswers", "MS-SMBD 3.1.5.5", waits=True)
async def any_message_answers(trial: Trial) -> None:
    """Any message answers the server's keepalive: the connection then stands longer than it would have waited."""
    session = await idle_session(trial)
    await keepalive(trial, session)
    session.peer.send_data(credits_requested=32, grant=1)
    await trial.pause(min(trial.timing.keepalive_answer + trial.timing.slack / 2, 0.9 * trial.timing.keepalive))
    trial.require(session.peer.alive, f"the connection ended: {session.peer.reason}")
    await session.client.echo()


# -- the end -------------------------------------------------------------------------------------------------------


@case(SUITE, "ConnectionLoss_IsReported", "MS-SMBD 3.1.7.1")
async def loss_reported(trial: Trial) -> None:
    """SMB2 is notified of a lost connection: it closes the opens, and another client can open the file that the first
    one had alone."""
    name = f"conformance-alone-{os.urandom(6).hex()}"
    first = await trial.log_on()
    options = int(CreateOptions.DELETE_ON_CLOSE)
    try:
        await first.tree.create(name, READ_WRITE, CreateDisposition.CREATE, options, share=0)
    except ServerError as error:
        raise Inconclusive(f"cannot create a file: {error}") from error
    second = await trial.log_on()
    trial.require(
        await _status_of_open(second, name) == NtStatus.SHARING_VIOLATION,
        "the file could be opened while the first client had it alone",
    )
    trial.note("-> the first connection is aborted")
    await first.peer.close()
    loop = asyncio.get_running_loop()
    limit = loop.time() + trial.timing.patience
    while await _status_of_open(second, name) == NtStatus.SHARING_VIOLATION:
        trial.require(loop.time() < limit, f"the open is still there {trial.timing.patience:g} s after the connection")
        await asyncio.sleep(0.05)


async def _status_of_open(session: Session, name: str) -> int:
    """Return the status of opening and closing a file."""
    try:
        await session.tree.close(await session.tree.create(name))
    except ServerError as error:
        return error.status
    return 0
