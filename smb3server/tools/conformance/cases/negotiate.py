"""SmbdNegotiate: the first two messages of a connection. [MS-SMBD 3.1.5.3, 3.1.5.6, 3.1.7.2]"""

from __future__ import annotations

from smb3server.tools.conformance.peer import Ended, Silence
from smb3server.tools.conformance.registry import case
from smb3server.tools.conformance.trial import Trial
from smbdirect.core.messages import NegotiateRequest, NegotiateResponse

SUITE = "SmbdNegotiate"


def check_response(trial: Trial, request: NegotiateRequest, response: NegotiateResponse) -> None:
    """Require a successful response that fits ``request``. [MS-SMBD 2.2.2, 3.1.5.3, 3.1.5.6]"""
    versions = (response.min_version, response.max_version, response.negotiated_version)
    trial.require(versions == (0x0100,) * 3, f"the versions are {versions}, not 0x0100")
    trial.require(response.reserved == 0, f"Reserved is {response.reserved:#x}")
    trial.require(response.status == 0, f"Status is {response.status:#010x}")
    trial.require(response.credits_requested > 0, "CreditsRequested is 0")
    trial.require(
        0 < response.credits_granted <= request.credits_requested,
        f"CreditsGranted is {response.credits_granted}, and {request.credits_requested} were requested",
    )
    trial.require(
        128 <= response.max_receive_size <= max(request.preferred_send_size, 128),
        f"MaxReceiveSize is {response.max_receive_size}, and PreferredSendSize was {request.preferred_send_size}",
    )
    trial.require(
        response.preferred_send_size <= request.max_receive_size,
        f"PreferredSendSize {response.preferred_send_size} exceeds MaxReceiveSize {request.max_receive_size}",
    )
    trial.require(response.max_fragmented_size >= 131072, f"MaxFragmentedSize is {response.max_fragmented_size}")


async def accepted(trial: Trial, **fields: int) -> NegotiateResponse:
    """Negotiate on a new connection and check the response."""
    peer = await trial.connect()
    response = await trial.succeed(peer, **fields)
    assert peer.request is not None
    check_response(trial, peer.request, response)
    return response


async def refused(trial: Trial, **fields: int) -> None:
    """Require that the server terminates the connection for this request, and answers nothing."""
    peer = await trial.connect()
    peer.request_negotiation(**fields)
    what = ", ".join(f"{name} {value}" for name, value in fields.items())
    await trial.terminated(peer, f"a Negotiate Request with {what}")
    trial.require(peer.response is None, f"a Negotiate Request with {what} was answered")


@case(SUITE, "BVT_SmbdNegotiate_Basic", "MS-SMBD 3.1.5.6")
async def basic(trial: Trial) -> None:
    """A good Negotiate Request is answered with success, version 0x0100, and sizes and credits that fit it."""
    await accepted(trial)


@case(SUITE, "SmbdNegotiate_NegativeParameter_CreditsRequested", "MS-SMBD 3.1.5.6")
async def credits_requested(trial: Trial) -> None:
    """CreditsRequested 0 terminates the connection; 1 and 65535 are accepted."""
    await refused(trial, credits_requested=0)
    await accepted(trial, credits_requested=1)
    await accepted(trial, credits_requested=0xFFFF)


@case(SUITE, "SmbdNegotiate_NegotiationTimer_Timeout", "MS-SMBD 3.1.6.1, 3.1.7.2", waits=True)
async def timer_expires(trial: Trial) -> None:
    """A connection on which no Negotiate Request comes within 5 seconds is terminated; the server goes on."""
    peer = await trial.connect()
    timing = trial.timing
    if not await peer.ended(timing.negotiation + timing.patience):
        trial.require(False, f"the connection still stands {timing.negotiation + timing.patience:g} s after it began")
    try:
        await peer.receive(0)
        trial.require(False, "the server sent a message before the Negotiate Request")
    except (Ended, Silence):
        pass
    await accepted(trial)
