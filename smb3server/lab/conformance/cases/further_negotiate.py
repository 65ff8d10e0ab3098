"""SmbdFurtherRules: what MS-SMBD demands of the first two messages, and Microsoft's suite does not try."""

from __future__ import annotations

from smb3server.lab.conformance.cases.negotiate import MAX_16, VERSION, accepted, not_supported
from smb3server.lab.conformance.peer import Ended, Silence
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Trial
from smbdirect.core.constants import STATUS_NOT_SUPPORTED
from smbdirect.core.messages import NegotiateResponse

SUITE = "SmbdFurtherRules"


@case(SUITE, "Negotiate_FailureFieldsAreZero", "MS-SMBD 3.1.5.3")
async def failure_fields(trial: Trial) -> None:
    """A response that refuses has MinVersion and MaxVersion 0x0100, the status, and 0 in all other fields."""
    peer = await not_supported(trial, min_version=VERSION + 1, max_version=MAX_16)
    assert peer.response is not None
    wanted = NegotiateResponse(VERSION, VERSION, 0, 0, 0, 0, STATUS_NOT_SUPPORTED, 0, 0, 0, 0)
    trial.require(peer.response == wanted, f"the response is {peer.response}")


@case(SUITE, "Negotiate_FailureEndsConnection", "MS-SMBD 3.1.5.3")
async def failure_ends(trial: Trial) -> None:
    """A server that refuses ends the connection gracefully: the response arrives first."""
    peer = await not_supported(trial, min_version=VERSION + 1, max_version=MAX_16)
    await trial.terminated(peer, "a response with STATUS_NOT_SUPPORTED")


@case(SUITE, "Negotiate_VersionRangeInverted", "MS-SMBD 3.1.5.6")
async def inverted(trial: Trial) -> None:
    """A range whose MinVersion is greater than its MaxVersion includes nothing: STATUS_NOT_SUPPORTED."""
    await not_supported(trial, min_version=VERSION + 1, max_version=VERSION - 1)


@case(SUITE, "Negotiate_VersionIsCheckedFirst", "MS-SMBD 3.1.5.6")
async def version_first(trial: Trial) -> None:
    """A request that has neither version 0x0100 nor CreditsRequested is answered with STATUS_NOT_SUPPORTED."""
    await not_supported(trial, min_version=VERSION + 1, max_version=MAX_16, credits_requested=0)


@case(SUITE, "Negotiate_RequestReservedIgnored", "MS-SMBD 2.2.1")
async def reserved(trial: Trial) -> None:
    """Reserved of the request is ignored."""
    await accepted(trial, reserved=MAX_16)


@case(SUITE, "Negotiate_FirstMessageIsARequest", "MS-SMBD 3.1.5.5")
async def first_message(trial: Trial) -> None:
    """The first message is read as a Negotiate Request whatever it is: a Data Transfer message, in which
    CreditsRequested 10 and CreditsGranted 0 stand for the versions, gets STATUS_NOT_SUPPORTED."""
    peer = await trial.connect()
    peer.send_data(b"\xfeSMB" + bytes(96))
    response = await peer.negotiate_response()
    trial.require(response.status == STATUS_NOT_SUPPORTED, f"the status is {response.status:#010x}")


@case(SUITE, "Negotiate_OnlyOnce", "MS-SMBD 2.2, 3.1.5.5")
async def once(trial: Trial) -> None:
    """A second Negotiate Request is read as a Data Transfer message. Its sizes stand for DataOffset and DataLength,
    which lie beyond its end: the connection is terminated."""
    peer = await trial.negotiated()
    peer.request_negotiation()
    await trial.terminated(peer, "a second Negotiate Request")


@case(SUITE, "Negotiate_AcceptorWaits", "MS-SMBD 3.1.5.2, 3.1.5.5")
async def acceptor_waits(trial: Trial) -> None:
    """The server sends nothing before the Negotiate Request."""
    peer = await trial.connect()
    try:
        received = await peer.receive(trial.timing.quiet)
    except (Silence, Ended):
        return
    trial.require(False, f"the server began with {len(received.data)} bytes")


@case(SUITE, "Negotiate_CreditsArePostedReceives", "MS-SMBD 3.1.5.3, 3.1.5.9")
async def posted(trial: Trial) -> None:
    """Every credit of the response is a receive of MaxReceiveSize: as many such messages may come at once."""
    peer = await trial.negotiated(credits_requested=255)
    assert peer.response is not None
    since = len(trial.received)
    for _ in range(peer.response.credits_granted):
        peer.send_data(credits_requested=255, grant=1, size=peer.response.max_receive_size)
    await trial.message(
        peer, since, lambda header: header.credits_granted > 0, trial.timing.prompt, "a grant of new credits"
    )


@case(SUITE, "Negotiate_TimerIsCanceled", "MS-SMBD 3.1.5.6", waits=True)
async def timer_canceled(trial: Trial) -> None:
    """The Negotiation Timer does not end a connection that has negotiated."""
    session = await trial.log_on()
    await trial.pause(trial.timing.negotiation + trial.timing.slack)
    trial.require(session.peer.alive, f"the connection ended: {session.peer.reason}")
    await session.client.echo()
