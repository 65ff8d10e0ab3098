"""SmbdNegotiate: the first two messages of a connection. [MS-SMBD 3.1.5.3, 3.1.5.6, 3.1.7.2]"""

from __future__ import annotations

from typing import Unpack

from smb3server.lab.conformance.peer import Fields, Peer
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import Violation
from smbdirect.core.constants import STATUS_INSUFFICIENT_RESOURCES, STATUS_NOT_SUPPORTED
from smbdirect.core.messages import NegotiateRequest, NegotiateResponse

SUITE = "SmbdNegotiate"
VERSION = 0x0100
MAX_16, MAX_32 = 0xFFFF, 0xFFFFFFFF
WINDOWS_LIMIT = 8136
"""Windows refuses a larger PreferredSendSize. [MS-SMBD 3.1.5.6, appendix B <6>]"""
SMALLEST_READ_WRITE = 1048576
"""Microsoft's suite takes no smaller MaxReadWriteSize. It is the smallest of Windows. [MS-SMBD 3.1.7.2, appendix B]
"""


def check_response(trial: Trial, request: NegotiateRequest, response: NegotiateResponse) -> None:
    """Require a successful response that fits ``request``. [MS-SMBD 2.2.2, 3.1.5.3, 3.1.5.6]"""
    versions = (response.min_version, response.max_version, response.negotiated_version)
    trial.require(versions == (VERSION,) * 3, f"the versions are {versions}, not 0x0100")
    trial.require(response.reserved == 0, f"Reserved is {response.reserved:#x}")
    trial.require(response.status == 0, f"Status is {response.status:#010x}")
    trial.require(response.credits_requested > 0, "CreditsRequested is 0")
    trial.require(
        0 < response.credits_granted <= request.credits_requested,
        f"CreditsGranted is {response.credits_granted}, and {request.credits_requested} were requested",
    )
    trial.require(
        response.max_read_write_size >= SMALLEST_READ_WRITE, f"MaxReadWriteSize is {response.max_read_write_size}"
    )
    trial.require(
        128 <= response.max_receive_size <= max(request.preferred_send_size, 128),
        f"MaxReceiveSize is {response.max_receive_size}, and PreferredSendSize was {request.preferred_send_size}",
    )
    trial.require(
        128 <= response.preferred_send_size <= request.max_receive_size,
        f"PreferredSendSize is {response.preferred_send_size}, and MaxReceiveSize was {request.max_receive_size}",
    )
    trial.require(response.max_fragmented_size >= 131072, f"MaxFragmentedSize is {response.max_fragmented_size}")


async def accepted(trial: Trial, **fields: Unpack[Fields]) -> NegotiateResponse:
    """Negotiate on a new connection and check the response."""
    peer = await trial.connect()
    response = await trial.succeed(peer, **fields)
    assert peer.request is not None
    check_response(trial, peer.request, response)
    return response


async def refused(trial: Trial, **fields: Unpack[Fields]) -> None:
    """Require that the server terminates the connection for this request, and answers nothing."""
    peer = await trial.connect()
    peer.request_negotiation(**fields)
    what = "a Negotiate Request with " + ", ".join(f"{name} {value}" for name, value in fields.items())
    await trial.terminated(peer, what)
    trial.require(peer.response is None, f"{what} was answered")


async def not_supported(trial: Trial, **fields: Unpack[Fields]) -> Peer:
    """Require the status STATUS_NOT_SUPPORTED for this request, and return the connection."""
    peer = await trial.connect()
    response = await peer.negotiate(**fields)
    trial.require(response.status == STATUS_NOT_SUPPORTED, f"the status is {response.status:#010x}")
    return peer


async def unusable(trial: Trial, min_version: int, max_version: int) -> None:
    """Require that the version range is refused, and that no SMB2 NEGOTIATE is answered afterwards."""
    peer = await not_supported(trial, min_version=min_version, max_version=max_version)
    since = len(trial.received)
    if peer.alive:
        peer.send_data(b"\xfeSMB" + bytes(60 + 36))
        await peer.ended(trial.timing.quiet)
    trial.require(not trial.messages_of(peer, since), "data was accepted on a connection that was refused")
    await trial.still_serves()


async def usable(trial: Trial, min_version: int, max_version: int) -> None:
    """Require that the version range is accepted, and that a file can be made if there is an account."""
    await accepted(trial, min_version=min_version, max_version=max_version)
    if trial.target.share:
        await trial.create(await trial.log_on(min_version=min_version, max_version=max_version), b"content")


@case(SUITE, "BVT_SmbdNegotiate_Basic", "MS-SMBD 3.1.5.6")
async def basic(trial: Trial) -> None:
    """A good Negotiate Request is answered with success, version 0x0100, and sizes and credits that fit it."""
    await accepted(trial)


@case(SUITE, "SmbdNegotiate_PreferredSendSizeWithZero", "MS-SMBD 3.1.5.6")
async def preferred_send_size_zero(trial: Trial) -> None:
    """For PreferredSendSize 0 the server's MaxReceiveSize is 128."""
    response = await accepted(trial, preferred_send_size=0)
    trial.require(response.max_receive_size == 128, f"MaxReceiveSize is {response.max_receive_size}")


@case(SUITE, "SmbdNegotiate_PreferredSendSizeLessThan128", "MS-SMBD 3.1.5.6")
async def preferred_send_size_small(trial: Trial) -> None:
    """For PreferredSendSize 127 and 128 the server's MaxReceiveSize is 128."""
    for size in (127, 128):
        response = await accepted(trial, preferred_send_size=size)
        trial.require(response.max_receive_size == 128, f"MaxReceiveSize is {response.max_receive_size} for {size}")


@case(SUITE, "SmbdNegotiate_PreferredSendSizeMaxValue", "MS-SMBD 3.1.5.6")
async def preferred_send_size_largest(trial: Trial) -> None:
    """PreferredSendSize 4294967295 is accepted. A server that refuses more than 8136 with
    STATUS_INSUFFICIENT_RESOURCES, as Windows does, accepts 8136."""
    peer = await trial.connect()
    response = await peer.negotiate(preferred_send_size=MAX_32)
    if response.status == STATUS_INSUFFICIENT_RESOURCES:
        await accepted(trial, preferred_send_size=WINDOWS_LIMIT)
        return
    assert peer.request is not None
    check_response(trial, peer.request, response)


@case(SUITE, "SmbdNegotiate_Redundancy", "MS-SMBD 3.1.5.6, 3.1.7.2")
async def redundancy(trial: Trial) -> None:
    """A Negotiate Request of 512 bytes is accepted: what follows its 20 bytes is ignored."""
    await accepted(trial, length=512)


@case(SUITE, "SmbdNegotiate_DisconnectAfterNegotiate", "MS-SMBD 3.1.7.1")
async def disconnect(trial: Trial) -> None:
    """A client that disconnects after the negotiation leaves a server that accepts others."""
    peer = await trial.negotiated()
    peer.disconnect()
    await peer.ended(trial.timing.patience)
    await trial.still_serves()


@case(SUITE, "SmbdNegotiate_UncompletedMessage", "MS-SMBD 3.1.5.6")
async def uncompleted(trial: Trial) -> None:
    """A Negotiate Request of less than 20 bytes terminates the connection; the server goes on."""
    await refused(trial, length=19)
    await trial.still_serves()


@case(SUITE, "SmbdNegotiate_VersionRangeNotCover0x0100_LessThanMinVersion", "MS-SMBD 3.1.5.6")
async def versions_above(trial: Trial) -> None:
    """Versions 0x0101 to 0xFFFF are refused with STATUS_NOT_SUPPORTED."""
    await unusable(trial, VERSION + 1, MAX_16)


@case(SUITE, "SmbdNegotiate_VersionRangeNotCover0x0100_LargerThanMaxVersion", "MS-SMBD 3.1.5.6")
async def versions_below(trial: Trial) -> None:
    """Versions 0x0000 to 0x00FF are refused with STATUS_NOT_SUPPORTED."""
    await unusable(trial, 0, VERSION - 1)


@case(SUITE, "SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersion", "MS-SMBD 3.1.5.6")
async def versions_from(trial: Trial) -> None:
    """Versions 0x0100 to 0xFFFF are accepted."""
    await usable(trial, VERSION, MAX_16)


@case(SUITE, "SmbdNegotiate_VersionRangeCover0x0100_EqualMaxVersion", "MS-SMBD 3.1.5.6")
async def versions_to(trial: Trial) -> None:
    """Versions 0x0000 to 0x0100 are accepted."""
    await usable(trial, 0, VERSION)


@case(SUITE, "SmbdNegotiate_VersionRangeCover0x0100_InMiddle", "MS-SMBD 3.1.5.6")
async def versions_around(trial: Trial) -> None:
    """Versions 0x00FF to 0x0101 are accepted."""
    await usable(trial, VERSION - 1, VERSION + 1)


@case(SUITE, "SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersionAndMaxVersion", "MS-SMBD 3.1.5.6")
async def version_alone(trial: Trial) -> None:
    """Version 0x0100 alone is accepted."""
    await usable(trial, VERSION, VERSION)


@case(SUITE, "SmbdNegotiate_NegativeParameter_CreditsRequested", "MS-SMBD 3.1.5.6")
async def credits_requested(trial: Trial) -> None:
    """CreditsRequested 0 terminates the connection; 1 and 65535 are accepted."""
    await refused(trial, credits_requested=0)
    await accepted(trial, credits_requested=1)
    await accepted(trial, credits_requested=MAX_16)


@case(SUITE, "SmbdNegotiate_NegativeParameter_MaxReceiveSize", "MS-SMBD 3.1.5.6")
async def max_receive_size(trial: Trial) -> None:
    """MaxReceiveSize 127 terminates the connection; 128 and 4294967295 are accepted."""
    await refused(trial, max_receive_size=127)
    await accepted(trial, max_receive_size=128)
    await accepted(trial, max_receive_size=MAX_32)


@case(SUITE, "SmbdNegotiate_NegativeParameter_MaxFragmentedSize", "MS-SMBD 3.1.5.6")
async def max_fragmented_size(trial: Trial) -> None:
    """MaxFragmentedSize 131071 terminates the connection; 131072 and 4294967295 are accepted."""
    await refused(trial, max_fragmented_size=131071)
    await accepted(trial, max_fragmented_size=131072)
    await accepted(trial, max_fragmented_size=MAX_32)


@case(SUITE, "SmbdNegotiate_NegotiationTimer", "MS-SMBD 3.1.7.2", waits=True)
async def timer_runs(trial: Trial) -> None:
    """A connection on which nothing is sent stands for nearly 5 seconds, and can then be negotiated."""
    peer = await trial.connect()
    await trial.pause(trial.timing.negotiation - trial.timing.slack)
    trial.require(peer.alive, f"the connection ended before {trial.timing.negotiation:g} s: {peer.reason}")
    await trial.succeed(peer)


@case(SUITE, "SmbdNegotiate_NegotiationTimer_Timeout", "MS-SMBD 3.1.6.1, 3.1.7.2", waits=True)
async def timer_expires(trial: Trial) -> None:
    """A connection on which no Negotiate Request comes within 5 seconds is terminated; the server goes on."""
    peer = await trial.connect()
    limit = trial.timing.negotiation + trial.timing.patience
    if not await peer.ended(limit):
        raise Violation(f"the connection still stands {limit:g} s after it began")
    await trial.still_serves()
