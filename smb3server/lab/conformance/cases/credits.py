"""SmbdCreditManagement: neither side sends without a credit, and both get new ones. [MS-SMBD 3.1.5.1, 3.1.5.8,
3.1.5.9]"""

from __future__ import annotations

import asyncio

from smb3server.client.protocol import RemoteFile
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Session, Trial, ignore_outcome, write_and_check
from smb3server.lab.conformance.verdict import Inconclusive, Violation
from smb3server.lab.content import content_of

SUITE = "SmbdCreditManagement"
LIMITED = 10
MODERATE = 65536
READ_HEADER = 64 + 16
"""Bytes of a READ response before its data. [MS-SMB2 2.2.1, 2.2.20]"""


class Starved:
    """A server that has more to send than it has credits."""

    def __init__(self, session: Session, content: bytes, reading: asyncio.Task[bytes]) -> None:
        self.session = session
        self.peer = session.peer
        self.content = content
        self.reading = reading


async def starve(trial: Trial, window: int = LIMITED) -> Starved:
    """Read 64 KiB with ``window`` credits for the server, and grant none. Return when nothing more comes.

    It is a violation if the server sends more messages than it has credits, or spends the last one without a grant.
    """
    session = await trial.log_on(window=window, credits_requested=window)
    content = content_of(MODERATE - READ_HEADER)
    file: RemoteFile = await trial.create(session, content)
    session.conversation.granting = False
    since = len(trial.received)
    reading = asyncio.get_running_loop().create_task(session.tree.read(file, 0, len(content)))
    reading.add_done_callback(ignore_outcome)
    # The last credit may stay: it needs a grant to go with (3.1.5.1).
    await trial.until(
        session.peer, lambda: session.peer.receive_credits <= 1, trial.timing.patience, "as many messages as credits"
    )
    await trial.settled()
    check_starved(trial, session, since)
    trial.require(not reading.done(), "the server sent all of its data")
    trial.note(f"the server waits, with {session.peer.receive_credits} credits")
    return Starved(session, content, reading)


async def log_on_with(trial: Trial, window: int, credits_requested: int) -> Session:
    """Log on with few credits. It is a violation if that fails, and the logon with more does not."""
    await trial.log_on()
    try:
        return await trial.log_on(window=window, credits_requested=credits_requested)
    except Inconclusive as error:
        raise Violation(f"with few credits the client {error}") from error


def check_starved(trial: Trial, session: Session, since: int) -> None:
    """Require that no message since entry ``since`` of ``received`` was sent without a credit, and that the last credit
    went with a grant."""
    trial.require(session.peer.receive_credits >= 0, "the server sent a message without a credit")
    for owner, received in trial.received[since:]:
        if owner is session.peer and received.credits == 1:
            granted = int.from_bytes(received.data[2:4], "little")
            trial.require(granted > 0, "the server spent its last credit on a message that grants none")


@case(SUITE, "BVT_SmbdCreditMgmt_OperationWithMinimumCredits", "MS-SMBD 3.1.5.1, 3.1.5.9")
async def minimum(trial: Trial) -> None:
    """64 KiB are written and read with one credit in each direction."""
    await write_and_check(trial, await log_on_with(trial, 1, 1), MODERATE)


@case(SUITE, "SmbdCreditMgmt_OperationWithLimitedCredits", "MS-SMBD 3.1.5.1, 3.1.5.9")
async def limited(trial: Trial) -> None:
    """64 KiB are written and read with ten credits in each direction."""
    await write_and_check(trial, await log_on_with(trial, LIMITED, LIMITED), MODERATE)


@case(SUITE, "SmbdCreditMgmt_ConsumeAllSendCredits", "MS-SMBD 3.1.5.8")
async def all_send_credits(trial: Trial) -> None:
    """A client that has used all its credits gets new ones promptly, in a message without data."""
    peer = await trial.negotiated(credits_requested=LIMITED)
    since = len(trial.received)
    for _ in range(peer.send_credits):
        peer.send_data(credits_requested=LIMITED, grant=1)
    header = await trial.message(
        peer, since, lambda header: header.credits_granted > 0, trial.timing.prompt, "a grant of credits"
    )
    trial.require(header.credits_requested > 0, "CreditsRequested is 0")
    fields = (header.data_length, header.data_offset, header.remaining_data_length)
    trial.require(fields == (0, 0, 0), f"the message has data: DataLength, DataOffset, RemainingDataLength {fields}")


@case(SUITE, "SmbdCreditMgmt_ConsumeAllReceiveCredits", "MS-SMBD 3.1.5.1")
async def all_receive_credits(trial: Trial) -> None:
    """A server that has used all its credits stops in the middle of a message, and goes on when it gets new ones."""
    starved = await starve(trial)
    starved.session.conversation.grant_again()
    async with trial.expecting("the rest of the READ, when the server got credits"):
        content = await starved.reading
    trial.require(content == starved.content, "the file was read wrongly")
    trial.require(starved.peer.receive_credits >= 0, "the server sent a message without a credit")


@case(SUITE, "SmbdCreditMgmt_ConsumeAllCreditServer_Timeout", "MS-SMBD 3.1.6.2", waits=True)
async def no_credits_ever(trial: Trial) -> None:
    """A server that never gets new credits sends nothing, and terminates the connection: as Windows does after some
    seconds, or when its keepalive cannot be answered."""
    starved = await starve(trial)
    count = len(trial.received)
    limit = 2 * trial.timing.keepalive + trial.timing.keepalive_answer + trial.timing.patience
    if not await starved.peer.ended(limit):
        raise Violation(f"the connection still stands after {limit:g} s without a credit")
    trial.require(len(trial.received) == count, "the server sent a message without a credit")


@case(SUITE, "SmbdCreditMgmt_NegativeParameter_CreditRequested", "MS-SMBD 3.1.5.8")
async def credits_requested(trial: Trial) -> None:
    """A Data Transfer message with CreditsRequested 0 terminates the connection."""
    peer = await trial.negotiated(credits_requested=LIMITED)
    peer.send_data(credits_requested=0)
    await trial.terminated(peer, "CreditsRequested 0")
