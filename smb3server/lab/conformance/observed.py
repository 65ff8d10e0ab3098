"""Rules about what a server sends, judged over every message that any case received. [MS-SMBD 2.2.3, 3.1.5.1,
3.1.5.4]"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from smb3server.lab.conformance.peer import Peer, Received, parse
from smbdirect.core.constants import DATA_ALIGNMENT, DataFlags
from smbdirect.core.messages import DATA_TRANSFER, DataTransfer
from smbdirect.providers.base import CloseCause, CloseReason


@dataclass(frozen=True, slots=True)
class Sent:
    """One Data Transfer message of the server, and what its sender had to go by."""

    header: DataTransfer
    payload: bytes
    data: bytes
    credits: int
    """Credits that the server held before it sent this message, or more: grants may have been on their way to it."""
    remaining: int
    """Bytes that the message under way still lacked before; 0 if none is under way."""
    max_send_size: int
    max_fragmented_size: int


Check = Callable[[Sent], str]
"""Returns what is wrong; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about the messages of the server."""

    name: str
    section: str
    text: str
    check: Check


def _inside(sent: Sent) -> str:
    header = sent.header
    end = header.data_offset + header.data_length
    if header.data_length and (header.data_offset < DATA_TRANSFER.size or end > len(sent.data)):
        return f"DataOffset {header.data_offset} and DataLength {header.data_length} in a message of {len(sent.data)}"
    return ""


def _aligned(sent: Sent) -> str:
    offset = sent.header.data_offset
    return f"DataOffset is {offset}" if offset % DATA_ALIGNMENT else ""


def _empty(sent: Sent) -> str:
    header = sent.header
    if header.data_length == 0 and (header.data_offset or header.remaining_data_length):
        return f"DataOffset {header.data_offset}, RemainingDataLength {header.remaining_data_length} without data"
    return ""


def _remaining(sent: Sent) -> str:
    header = sent.header
    total = header.data_length + header.remaining_data_length
    if sent.remaining and header.data_length and total != sent.remaining:
        return (
            f"{header.data_length} bytes and {header.remaining_data_length} remaining, after {sent.remaining} remained"
        )
    return ""


def _flags(sent: Sent) -> str:
    unknown = sent.header.flags & ~int(DataFlags.RESPONSE_REQUESTED)
    return f"Flags {sent.header.flags:#x}" if unknown else ""


def _reserved(sent: Sent) -> str:
    return f"Reserved {sent.header.reserved:#x}" if sent.header.reserved else ""


def _requests(sent: Sent) -> str:
    return "" if sent.header.credits_requested else "CreditsRequested is 0"


def _credit(sent: Sent) -> str:
    return "" if sent.credits > 0 else f"a message was sent with {sent.credits} credits"


def _last_credit(sent: Sent) -> str:
    return "the last credit was spent without a grant" if sent.credits == 1 and not sent.header.credits_granted else ""


def _send_size(sent: Sent) -> str:
    size = len(sent.data)
    return f"{size} bytes exceed MaxSendSize {sent.max_send_size}" if size > sent.max_send_size else ""


def _fragmented(sent: Sent) -> str:
    total = sent.header.data_length + sent.header.remaining_data_length
    return f"a message of {total} bytes exceeds {sent.max_fragmented_size}" if total > sent.max_fragmented_size else ""


def _padding(sent: Sent) -> str:
    padding = sent.data[DATA_TRANSFER.size : sent.header.data_offset] if sent.header.data_length else b""
    return f"the padding is {padding.hex()}" if any(padding) else ""


ONLY_WITH_CREDIT = "Sent_OnlyWithCredit"
RULES = (
    Rule(
        "Sent_PayloadInsideMessage",
        "MS-SMBD 2.2.3",
        "DataOffset and DataLength lie inside the server's message, behind its header.",
        _inside,
    ),
    Rule("Sent_DataOffsetAligned", "MS-SMBD 3.1.5.4", "The server's DataOffset is a multiple of 8.", _aligned),
    Rule(
        "Sent_EmptyFieldsAreZero",
        "MS-SMBD 3.1.5.4",
        "A message of the server without data has DataOffset and RemainingDataLength 0.",
        _empty,
    ),
    Rule(
        "Sent_RemainingDataLengthExact",
        "MS-SMBD 3.1.5.4",
        "The server's RemainingDataLength is what it has not yet sent, and fragments of two messages do not mix.",
        _remaining,
    ),
    Rule(
        "Sent_FlagsDefined",
        "MS-SMBD 2.2.3",
        "The server's Flags have no bit but SMB_DIRECT_RESPONSE_REQUESTED.",
        _flags,
    ),
    Rule("Sent_ReservedIsZero", "MS-SMBD 3.1.5.4", "The server's Reserved is 0.", _reserved),
    Rule(
        "Sent_RequestsCredits",
        "MS-SMBD 3.1.5.1, 3.1.5.8",
        "The server's CreditsRequested is at least 1.",
        _requests,
    ),
    Rule(ONLY_WITH_CREDIT, "MS-SMBD 3.1.5.1", "The server sends no message without a credit.", _credit),
    Rule(
        "Sent_LastCreditGrants",
        "MS-SMBD 3.1.5.1",
        "The server spends its last credit only on a message that grants at least one.",
        _last_credit,
    ),
    Rule(
        "Sent_WithinMaxSendSize",
        "MS-SMBD 3.1.5.4, 3.1.5.6",
        "No message of the server is longer than its PreferredSendSize or the client's MaxReceiveSize.",
        _send_size,
    ),
    Rule(
        "Sent_WithinMaxFragmentedSize",
        "MS-SMBD 3.1.4.2, 3.1.5.4",
        "No fragmented message of the server is longer than the client's MaxFragmentedSize.",
        _fragmented,
    ),
    Rule(
        "Sent_PaddingIsZero",
        "MS-SMBD 3.1.5.4",
        "The padding before the data of the server's messages is 0.",
        _padding,
    ),
)


class Monitor:
    """Judges every message of a run by ``RULES``."""

    def __init__(self) -> None:
        self.messages = 0
        """Data Transfer messages judged."""
        self.violations: dict[str, list[str]] = {rule.name: [] for rule in RULES}
        self._remaining: WeakKeyDictionary[Peer, int] = WeakKeyDictionary()

    def observe(self, peer: Peer, received: Received) -> None:
        """Judge one message; Negotiate Responses are the matter of their own cases."""
        request, response = peer.request, peer.response
        if not received.negotiated or request is None or response is None:
            return
        if len(received.data) < DATA_TRANSFER.size:
            for found in self.violations.values():
                found.append(f"a message of {len(received.data)} bytes")
            return
        self.messages += 1
        header, payload = parse(received.data)
        sent = Sent(
            header,
            payload,
            received.data,
            received.credits,
            self._remaining.get(peer, 0),
            min(response.preferred_send_size, request.max_receive_size),
            request.max_fragmented_size,
        )
        for rule in RULES:
            wrong = rule.check(sent)
            if wrong:
                self.violations[rule.name].append(wrong)
        if header.data_length:
            self._remaining[peer] = header.remaining_data_length

    def ended(self, reason: CloseReason) -> None:
        """Judge the end of a connection. There are always more receives than credits (``peer.SPARE_RECEIVES``)."""
        if reason.cause is CloseCause.NO_RECEIVE:
            self.violations[ONLY_WITH_CREDIT].append("a connection ended: there was no receive for a message")
