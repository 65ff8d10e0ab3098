"""Every case finds a server that breaks its rule: our server, with one protection taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smb3server.lab.conformance.cases.data_transfer import SMALL
from smb3server.lab.conformance.registry import load
from smb3server.lab.conformance.verdict import Verdict
from smbdirect.core.connection import Connection, Keepalive
from smbdirect.core.credits import Credits
from smbdirect.core.messages import NegotiateRequest, NegotiateResponse
from smbdirect.core.reassembly import Reassembler
from smbdirect.message_transport import PooledBuffer
from smbdirect.providers.base import ConnectionRequest, Send
from smbdirect.transport.listen import SmbDirectListener
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.broken_servers import (
    Breaker,
    around,
    message,
    parts,
    reads,
    reads_request,
    refuses,
    refuses_request,
    replaces,
    responds,
    sends,
    sends_bytes,
)
from tests.lab.conformance import BROKEN, result, told

SUITES = ("SmbdNegotiate", "SmbdCreditManagement", "SmbdDataTransfer", "SmbdFurtherRules")
VERSION = 0x0100

# -- negotiation ---------------------------------------------------------------------------------------------------


def _any_version(request: NegotiateRequest) -> NegotiateRequest:
    return request._replace(min_version=VERSION, max_version=VERSION)


def _only(minimum: int, maximum: int) -> Breaker:
    """Refuses all version ranges but one, as Windows Server 2012 all but 0x0100 alone."""

    def fix(request: NegotiateRequest) -> NegotiateRequest:
        good = (request.min_version, request.max_version) == (minimum, maximum)
        return request if good else request._replace(min_version=0x200, max_version=0x200)

    return reads_request(fix)


def _swapped(request: NegotiateRequest) -> NegotiateRequest:
    low, high = sorted((request.min_version, request.max_version))
    return request._replace(min_version=low, max_version=high)


def _one_connection(patch: pytest.MonkeyPatch) -> None:
    original = SmbDirectListener.on_request
    seen: list[ConnectionRequest] = []

    def on_request(self: SmbDirectListener, request: ConnectionRequest) -> None:
        seen.append(request)
        if len(seen) == 1:
            original(self, request)
        else:
            request.reject()

    patch.setattr(SmbDirectListener, "on_request", on_request)


def _speaks_first(patch: pytest.MonkeyPatch) -> None:
    original = SmbDirectListener._accept

    async def accept(self: SmbDirectListener, request: ConnectionRequest, transport: SmbDirectTransport) -> None:
        await original(self, request, transport)
        transport.endpoint.post([Send([bytes(20)], signalled=False)])

    patch.setattr(SmbDirectListener, "_accept", accept)


def _ignores_long_first(original: Callable[..., object], self: Connection, view: memoryview, now: float) -> object:
    return None if len(view) > 100 else original(view, now)


def _second_request_ignored(connection: Connection, data: bytes) -> bytes:
    return bytes([10, 0]).ljust(20, b"\0") if data[:4] == b"\0\1\0\1" else data


def _negotiation_deadline(factor: float | None) -> Breaker:
    """The Negotiation Timer of the acceptor is ``factor`` times as long; None is for ever."""

    def change(original: Callable[..., object], self: Connection, *arguments: Any) -> None:
        original(*arguments)
        timeout = self.settings.negotiation_timeout_passive
        self._negotiation_deadline = None if factor is None else arguments[2] + factor * timeout

    return around(Connection, "__init__", change)


def _keeps_negotiation_timer(original: Callable[..., object], self: Connection, now: float) -> object:
    deadline = self._negotiation_deadline
    event = original(now)
    self._negotiation_deadline = deadline
    return event


def _adopts(**kept: int) -> Breaker:
    """The server does not adopt these of the sizes in the request."""

    def change(original: Callable[..., object], self: Connection, peer: NegotiateRequest) -> None:
        original(peer)
        for name, value in kept.items():
            setattr(self, name, value)

    return around(Connection, "_adopt_sizes", change)


NEGOTIATE: dict[str, Breaker] = {
    "BVT_SmbdNegotiate_Basic": responds(lambda r: r._replace(credits_requested=0)),
    "SmbdNegotiate_PreferredSendSizeWithZero": _adopts(max_receive_size=0),
    "SmbdNegotiate_PreferredSendSizeLessThan128": _adopts(max_receive_size=127),
    "SmbdNegotiate_PreferredSendSizeMaxValue": refuses_request(lambda r: r.preferred_send_size > 1 << 20),
    "SmbdNegotiate_Redundancy": around(
        Connection,
        "_receive_negotiate_request",
        lambda original, self, view, now: original(view[:19] if len(view) > 20 else view, now),
    ),
    "SmbdNegotiate_DisconnectAfterNegotiate": _one_connection,
    "SmbdNegotiate_UncompletedMessage": reads_request(lambda r: r._replace(max_fragmented_size=131072)),
    "SmbdNegotiate_VersionRangeNotCover0x0100_LessThanMinVersion": reads_request(_any_version),
    "SmbdNegotiate_VersionRangeNotCover0x0100_LargerThanMaxVersion": reads_request(_any_version),
    "SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersion": _only(VERSION, VERSION),
    "SmbdNegotiate_VersionRangeCover0x0100_EqualMaxVersion": _only(VERSION, VERSION),
    "SmbdNegotiate_VersionRangeCover0x0100_InMiddle": _only(VERSION, VERSION),
    "SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersionAndMaxVersion": _only(0, 0xFFFF),
    "SmbdNegotiate_NegativeParameter_CreditsRequested": reads_request(
        lambda r: r._replace(credits_requested=max(r.credits_requested, 1))
    ),
    "SmbdNegotiate_NegativeParameter_MaxReceiveSize": reads_request(
        lambda r: r._replace(max_receive_size=max(r.max_receive_size, 128))
    ),
    "SmbdNegotiate_NegativeParameter_MaxFragmentedSize": reads_request(
        lambda r: r._replace(max_fragmented_size=max(r.max_fragmented_size, 131072))
    ),
    "SmbdNegotiate_NegotiationTimer": _negotiation_deadline(0.1),
    "SmbdNegotiate_NegotiationTimer_Timeout": _negotiation_deadline(None),
    "Negotiate_FailureFieldsAreZero": responds(lambda r: r._replace(credits_requested=255) if r.status else r),
    "Negotiate_FailureEndsConnection": replaces(SmbDirectTransport, "_finish_close", lambda self: None),
    "Negotiate_VersionRangeInverted": reads_request(_swapped),
    "Negotiate_VersionIsCheckedFirst": refuses_request(lambda r: r.credits_requested == 0),
    "Negotiate_RequestReservedIgnored": refuses_request(lambda r: r.reserved),
    "Negotiate_FirstMessageIsARequest": around(Connection, "_receive_negotiate_request", _ignores_long_first),
    "Negotiate_OnlyOnce": reads(_second_request_ignored),
    "Negotiate_AcceptorWaits": _speaks_first,
    "Negotiate_CreditsArePostedReceives": responds(lambda r: r._replace(credits_granted=r.credits_granted + 8)),
    "Negotiate_TimerIsCanceled": around(Connection, "_establish", _keeps_negotiation_timer),
}

# -- credits -------------------------------------------------------------------------------------------------------


def _overdraws(self: Credits) -> int:
    self.send_credits -= 1
    return self.grant()


def _spends_last_alone(original: Callable[[], int | None], self: Credits) -> int | None:
    if self.send_credits != 1:
        return original()
    self.send_credits = 0
    return 0


def _no_receive_for_last(original: Callable[[bool], int], self: Credits, waiting: bool) -> int:
    """Posts receives as if there were always more than the last credit."""
    return original(False)


def _never_lowers(original: Callable[..., None], self: Credits, **changed: int | None) -> None:
    """Keeps the largest CreditsRequested."""
    target = changed.get("target")
    original(**changed | ({} if target is None else {"target": max(target, self.receive_credit_target)}))


def _deaf_to_grants(connection: Connection, data: bytes) -> bytes:
    header, payload = parts(data)
    return message(header._replace(credits_granted=0), payload) if connection.send_queue and not payload else data


NEVER_GRANTS = replaces(Credits, "peer_runs_low", property(lambda self: False))
OVERDRAWS = replaces(Credits, "spend", _overdraws)
SPENDS_LAST_ALONE = around(Credits, "spend", _spends_last_alone)
NO_TIMERS = replaces(Connection, "handle_timer", lambda self, now: None)

CREDITS: dict[str, Breaker] = {
    "BVT_SmbdCreditMgmt_OperationWithMinimumCredits": NEVER_GRANTS,
    "SmbdCreditMgmt_OperationWithLimitedCredits": NEVER_GRANTS,
    "SmbdCreditMgmt_ConsumeAllSendCredits": NEVER_GRANTS,
    "SmbdCreditMgmt_ConsumeAllReceiveCredits": OVERDRAWS,
    "SmbdCreditMgmt_ConsumeAllCreditServer_Timeout": NO_TIMERS,
    "SmbdCreditMgmt_NegativeParameter_CreditRequested": reads(
        lambda connection, data: message(parts(data)[0]._replace(credits_requested=10), parts(data)[1])
    ),
    "Credits_NothingBeforeTheFirst": OVERDRAWS,
    "Credits_GrantRestartsQueue": reads(_deaf_to_grants),
    "Credits_LoweredRequestIsFollowed": around(Credits, "resize", _never_lowers),
    "Credits_OneSuffices": around(Credits, "receives_wanted", _no_receive_for_last),
}

# -- data ----------------------------------------------------------------------------------------------------------


def _any_offset(connection: Connection, data: bytes) -> bytes:
    return message(*parts(data))


def _announces_less(connection: Connection, data: bytes) -> bytes:
    """Without a check of MaxFragmentedSize."""
    header, payload = parts(data)
    most = connection.max_fragmented_receive_size - len(payload)
    return message(header._replace(remaining_data_length=min(header.remaining_data_length, most)), payload)


def _flips(connection: Connection, data: bytes) -> bytes:
    header, payload = parts(data)
    if len(payload) == SMALL:
        payload = payload[:-1] + bytes([payload[-1] ^ 1])
    return message(header, payload)


def _joins_anything(self: Reassembler, data: memoryview, remaining: int) -> PooledBuffer | None:
    """Puts fragments behind each other as far as there is room, and compares no lengths."""
    if self._buffer is None:
        self._buffer = self._allocate(len(data) + remaining)
        self.active, self._position = True, 0
    room = len(self._buffer.view) - self._position
    part = data[:room]
    self._buffer.view[self._position : self._position + len(part)] = part
    self._position += len(part)
    if remaining:
        return None
    buffer, self._buffer, self.active = self._buffer, None, False
    return buffer


def _places_by_remaining(self: Reassembler, data: memoryview, remaining: int) -> PooledBuffer | None:
    """Computes the place of a fragment from what it says is to come."""
    if self._buffer is None:
        self._buffer = self._allocate(len(data) + remaining)
        self.active = True
    end = len(self._buffer.view) - remaining
    self._buffer.view[end - len(data) : end] = data
    if remaining:
        return None
    buffer, self._buffer, self.active = self._buffer, None, False
    return buffer


def _reverses(original: Callable[..., PooledBuffer | None], *arguments: Any) -> PooledBuffer | None:
    buffer = original(*arguments[1:])
    if buffer is not None:
        buffer.view[200:300] = bytes(buffer.view[200:300])[::-1]
    return buffer


def _empty_message_wipes(connection: Connection, data: bytes) -> bytes:
    header, payload = parts(data)
    buffer = connection.reassembler._buffer
    if not payload and not header.remaining_data_length and buffer is not None:
        buffer.view[200:300] = bytes(100)
    return data


def _no_answer(connection: Connection, data: bytes) -> bytes:
    header, payload = parts(data)
    return message(header._replace(flags=0), payload)


def _forgives_silence(original: Callable[..., None], self: Connection, now: float) -> None:
    self.keepalive_requested = Keepalive.NONE
    original(now)


def _keeps_idle_timer(only_if_asked: bool) -> Breaker:
    """Messages do not restart the Idle Connection Timer."""

    def change(original: Callable[..., object], self: Connection, *arguments: Any) -> object:
        deadline, requested = self.idle_deadline, self.keepalive_requested
        event = original(*arguments)
        if not only_if_asked or requested is not Keepalive.NONE:
            self.idle_deadline, self.keepalive_requested = deadline, requested
        return event

    return around(Connection, "_receive_data", change)


def _trailing(header: Any, data: bytes) -> bool:
    return bool(header.data_length and header.data_offset + header.data_length < len(data))


ANY_OFFSET = reads(_any_offset)
JOINS_ANYTHING = replaces(Reassembler, "append", _joins_anything)
REVERSES = around(Reassembler, "append", _reverses)

DATA: dict[str, Breaker] = {
    "BVT_SmbdDataTransfer_Basic_SendSmallBytesOfData": reads(_flips),
    "BVT_SmbdDataTransfer_Basic_SendModerateBytesData": REVERSES,
    "SmbdDataTransfer_VariableLengthSegment": refuses(lambda h, data: h.remaining_data_length and not h.data_length),
    "SmbdDataTransfer_SmallLengthSegment": refuses(_trailing),
    "SmbdDataTransfer_Redundancy": refuses(_trailing),
    "SmbdDataTransfer_ReceiveMaxReceiveSize": sends(
        lambda h: h._replace(remaining_data_length=h.remaining_data_length + 1) if h.remaining_data_length else h
    ),
    "SmbdDataTransfer_UncompletedMessage": reads(lambda connection, data: data.ljust(20, b"\0")),
    "SmbdDataTransfer_NegativeParameter_DataOffset_Against8ByteAligned": ANY_OFFSET,
    "SmbdDataTransfer_NegativeParameter_DataOffset_AgainstMessageLength": ANY_OFFSET,
    "SmbdDataTransfer_NegativeParameter_DataLength_AgainstMessageLength": ANY_OFFSET,
    "SmbdDataTransfer_NegativeParameter_DataLength_AgainstMaxReceiveSize": responds(
        lambda r: r._replace(max_receive_size=r.max_receive_size - 64)
    ),
    "SmbdDataTransfer_NegativeParameter_AgainstMaxFragmentedSize": JOINS_ANYTHING,
    "SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstMaxFragmentedSize": reads(_announces_less),
    "SmbdDataTransfer_NegativeParameter_RemainingDataLength_Zero": JOINS_ANYTHING,
    "SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstFragmentReassemblyRemaining": replaces(
        Reassembler, "append", _places_by_remaining
    ),
    "SmbdDataTransfer_IdleConnection_Client": reads(_no_answer),
    "SmbdDataTransfer_IdleConnection_Server": NO_TIMERS,
    "SmbdDataTransfer_IdleConnection_Server_Timeout": around(Connection, "handle_timer", _forgives_silence),
    "DataTransfer_ReservedIgnored": refuses(lambda h, data: h.reserved),
    "DataTransfer_PaddingIgnored": refuses(lambda h, data: h.data_length and any(data[20 : h.data_offset])),
    "DataTransfer_OtherDataOffset": refuses(lambda h, data: h.data_length and h.data_offset != 24),
    "DataTransfer_OffsetAndLengthOverflow": ANY_OFFSET,
    "DataTransfer_LengthAndRemainingOverflow": reads(_announces_less),
    "DataTransfer_LengthAndRemainingAgainstMaxFragmentedSize": reads(_announces_less),
    "Fragments_LongerThanRemaining": JOINS_ANYTHING,
    "Fragments_EmptyMessageBetween": reads(_empty_message_wipes),
    "DataTransfer_ResponseRequested": reads(_no_answer),
    "Sizes_Smallest": _adopts(max_send_size=1024),
    "Sizes_ResponseBeyondMaxFragmentedSize": _adopts(max_fragmented_send_size=1 << 30),
    "Keepalive_TimerRestarts": _keeps_idle_timer(False),
    "Keepalive_AnyMessageAnswers": _keeps_idle_timer(True),
    "ConnectionLoss_IsReported": replaces(SmbDirectTransport, "_report_end", lambda self: None),
}

# -- what the server sends -----------------------------------------------------------------------------------------


def _long_remaining(header: Any) -> Any:
    remaining = header.remaining_data_length
    return header._replace(remaining_data_length=remaining + (1 << 20)) if remaining else header


SENT: dict[str, Breaker] = {
    "Sent_PayloadInsideMessage": sends(lambda h: h._replace(data_length=h.data_length + 1) if h.data_length else h),
    "Sent_DataOffsetAligned": sends(
        lambda h: h._replace(data_offset=h.data_offset + 1, data_length=h.data_length - 1) if h.data_length else h
    ),
    "Sent_EmptyFieldsAreZero": sends(lambda h: h if h.data_length else h._replace(data_offset=24)),
    "Sent_RemainingDataLengthExact": DATA["SmbdDataTransfer_ReceiveMaxReceiveSize"],
    "Sent_FlagsDefined": sends(lambda h: h._replace(flags=h.flags | 2)),
    "Sent_ReservedIsZero": sends(lambda h: h._replace(reserved=1)),
    "Sent_RequestsCredits": sends(lambda h: h._replace(credits_requested=0)),
    "Sent_OnlyWithCredit": OVERDRAWS,
    "Sent_LastCreditGrants": SPENDS_LAST_ALONE,
    "Sent_WithinMaxSendSize": _adopts(max_send_size=1200),
    "Sent_WithinMaxFragmentedSize": sends(_long_remaining),
    "Sent_PaddingIsZero": sends_bytes(lambda data: data[:20] + b"\xff" * 4 + data[24:] if len(data) > 24 else data),
}

BREAKERS = NEGOTIATE | CREDITS | DATA | SENT


@pytest.mark.parametrize(
    "fix",
    [
        pytest.param(lambda r: r._replace(max_read_write_size=1048575), id="MaxReadWriteSize"),
        pytest.param(lambda r: r._replace(preferred_send_size=127), id="PreferredSendSize"),
    ],
)
def test_sizes_of_a_response_that_are_too_small(
    fix: Callable[[NegotiateResponse], NegotiateResponse], monkeypatch: pytest.MonkeyPatch
) -> None:
    responds(fix)(monkeypatch)
    found = result("BVT_SmbdNegotiate_Basic", timing=BROKEN)
    assert found.verdict is Verdict.FAIL, told(found)


def test_every_case_is_tried() -> None:
    assert set(BREAKERS) == {case.name for case in load().values() if case.suite in SUITES}


@pytest.mark.parametrize("name", BREAKERS)
def test_case_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKERS[name](monkeypatch)
    found = result(name, timing=BROKEN)
    assert found.verdict is Verdict.FAIL, told(found)
