"""MPA set-up frames and negotiation (RFC 5044, RFC 6581)."""

from __future__ import annotations

import struct
from typing import Literal

import pytest
from construct import Container
from hypothesis import given
from hypothesis import strategies as st

from smbdirect.errors import ProtocolError, ProviderError
from smbdirect.providers.iwarp import mpa
from smbdirect.providers.iwarp.mpa import Frame, FrameFlag, ReadLimits, Rtr

ENHANCED = FrameFlag.ENHANCED

frames = st.builds(
    lambda flags, ird, ord_, data: Frame(FrameFlag(flags) | ENHANCED, 2, ReadLimits(ird, ord_), data),
    st.sampled_from([0, 0x40, 0x80, 0x20, 0xE0]),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
    st.binary(max_size=508),
) | st.builds(
    lambda flags, data: Frame(FrameFlag(flags), 1, None, data),
    st.sampled_from([0, 0x40, 0x80, 0x20]),
    st.binary(max_size=512),
)


@given(frames)
def test_frames_round_trip(frame: Frame) -> None:
    for key in (mpa.REQUEST_KEY, mpa.REPLY_KEY):
        data = mpa.encode_frame(key, frame)
        assert mpa.decode_frame(data, key) == frame
        layout = mpa.FRAME_HEADER.layout.parse(data)
        assert layout == Container(
            key=key, flags=int(frame.flags), revision=frame.revision, private_data_length=len(data) - 20
        )


@given(st.binary(max_size=600))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for candidate in (data, mpa.REQUEST_KEY + data):
        try:
            mpa.check_request(mpa.decode_frame(candidate, mpa.REQUEST_KEY))
        except ProtocolError:
            continue


@pytest.mark.parametrize(("size", "accepted"), [(512, True), (513, False)])
def test_private_data_limit(size: int, accepted: bool) -> None:
    data = struct.pack(">16sBBH", mpa.REQUEST_KEY, 0, 1, size) + bytes(size)
    if accepted:
        assert mpa.decode_frame(data, mpa.REQUEST_KEY).private_data == bytes(512)
        return
    with pytest.raises(ProtocolError):
        mpa.decode_frame(data, mpa.REQUEST_KEY)
    with pytest.raises(ProviderError):
        mpa.encode_frame(mpa.REQUEST_KEY, Frame(FrameFlag(0), 1, None, bytes(size)))


def test_enhanced_frame_too_short_for_its_limits() -> None:
    data = struct.pack(">16sBBH", mpa.REQUEST_KEY, 0x10, 2, 3) + bytes(3)
    with pytest.raises(ProtocolError):
        mpa.decode_frame(data, mpa.REQUEST_KEY)


@pytest.mark.parametrize("revision", [0, 3, 255])
def test_unknown_revision_is_refused(revision: int) -> None:
    with pytest.raises(ProtocolError):
        mpa.check_request(Frame(FrameFlag(0), revision, None, b""))


def test_markers_are_refused_in_both_roles() -> None:
    request = mpa.request_frame(b"", crc=False)
    with pytest.raises(ProtocolError):
        mpa.check_request(request._replace(flags=request.flags | FrameFlag.MARKERS))
    reply, _ = mpa.accept_frame(request, b"", crc=False)
    with pytest.raises(ProtocolError):
        mpa.complete_request(request, reply._replace(flags=reply.flags | FrameFlag.MARKERS))
    for refused in (request, request._replace(revision=1, limits=None), None):
        rejection = mpa.reject_frame(refused)
        assert FrameFlag.REJECT in rejection.flags
        assert FrameFlag.MARKERS not in rejection.flags
        if refused is not None:
            with pytest.raises(ProtocolError):
                mpa.complete_request(refused, rejection)


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("revision", [1, 2])
def test_crc_is_used_if_either_side_asks(ours: bool, theirs: bool, revision: int) -> None:
    request = mpa.request_frame(b"", crc=theirs, revision=revision)
    reply, responder = mpa.accept_frame(request, b"", crc=ours)
    assert responder.crc is (ours or theirs)
    assert (FrameFlag.CRC in reply.flags) is responder.crc
    assert mpa.complete_request(request, reply).crc is responder.crc


@pytest.mark.parametrize(
    ("ird", "expected_ord"), [(0, 0), (1, 1), (16, 16), (17, 16), (32, 16), (mpa.NOT_NEGOTIATED, 16)]
)
def test_reads_we_issue_are_bounded_by_the_peers_ird(ird: int, expected_ord: int) -> None:
    request = Frame(ENHANCED, 2, ReadLimits(ird, 0), b"")
    reply, agreed = mpa.accept_frame(request, b"", crc=False)
    assert agreed.ord == expected_ord
    assert agreed.ird == 16
    assert reply.limits == ReadLimits(16, expected_ord)


@pytest.mark.parametrize(
    ("ird", "ord_", "rtr", "limits"),
    [
        (0x8010, 0x8010, Rtr.WRITE, (0x8010, 0x8010)),
        (0x8010, 0xC010, Rtr.WRITE, (0x8010, 0x8010)),
        (0xC010, 0xC010, Rtr.WRITE, (0x8010, 0x8010)),
        (0x8010, 0x4010, Rtr.READ, (0x8010, 0x4010)),
        (0xC010, 0x4010, Rtr.READ, (0x8010, 0x4010)),
        (0xC010, 0x0010, Rtr.SEND, (0xC010, 0x0010)),
        (0x0010, 0xC010, None, (0x0010, 0x0010)),
        (0x8010, 0x0010, None, (0x0010, 0x0010)),
    ],
)
def test_ready_to_receive_choice(ird: int, ord_: int, rtr: Rtr | None, limits: tuple[int, int]) -> None:
    reply, agreed = mpa.accept_frame(Frame(ENHANCED, 2, ReadLimits(ird, ord_), b""), b"", crc=False)
    assert agreed.rtr is rtr
    assert reply.limits == limits


@pytest.mark.parametrize("rtr", Rtr)
def test_both_roles_agree_on_the_ready_to_receive_operation(rtr: Rtr) -> None:
    request = mpa.request_frame(b"", crc=False, peer_to_peer=rtr)
    reply, responder = mpa.accept_frame(request, b"", crc=False)
    assert responder.rtr is rtr
    assert mpa.complete_request(request, reply).rtr is rtr


def test_no_ready_to_receive_operation_in_common() -> None:
    request = mpa.request_frame(b"", crc=False, peer_to_peer=Rtr.WRITE)
    with pytest.raises(ProtocolError):
        mpa.complete_request(request, Frame(ENHANCED, 2, ReadLimits(0x8010, 0x4010), b""))


@pytest.mark.parametrize("reply", [Frame(FrameFlag(0), 2, None, b""), Frame(ENHANCED, 1, None, b"")])
def test_reply_that_does_not_match_the_request(reply: Frame) -> None:
    with pytest.raises(ProtocolError):
        mpa.complete_request(mpa.request_frame(b"", crc=False), reply)


@given(st.integers(0, mpa.MAX_ULPDU))
def test_fpdus_are_padded_to_four(length: int) -> None:
    size = mpa.fpdu_size(length)
    assert size % 4 == 0
    assert 0 <= size - length - mpa.FPDU_OVERHEAD < 4
    assert len(mpa.trailer(length, None)) == size - length - 2


@pytest.mark.parametrize(("mss", "ulpdu"), [(1448, 1442), (1460, 1454), (8944, 8938), (65483, 65474), (1, 128)])
def test_segment_sized_ulpdus(mss: int, ulpdu: int) -> None:
    assert mpa.ulpdu_for_segment(mss) == ulpdu


def legacy(order: Literal["big", "little"], ird: int, ord_: int, more: bytes = b"") -> bytes:
    return ird.to_bytes(4, order) + ord_.to_bytes(4, order) + more


@pytest.mark.parametrize(
    ("private_data", "expected_ord"),
    [
        (legacy("big", 32, 1), 16),
        (legacy("little", 32, 1), 16),  # Linux 6.12
        (legacy("big", 4, 1), 4),
        (legacy("little", 4, 1), 4),
        (legacy("big", 1, 1), 1),
        (legacy("big", 4, 1, b"more"), 4),
        (legacy("big", 0, 1), 1),
        (legacy("big", 4, 0), 1),
        (legacy("big", mpa.NOT_NEGOTIATED, 1), 1),
        (legacy("big", 4, 1)[:7], 1),
        (b"from client", 1),
        (b"", 1),
    ],
)
def test_reads_towards_a_peer_of_revision_1(private_data: bytes, expected_ord: int) -> None:
    """MS-SMBD 6.1: the depths stand in the first bytes of the private data, in one order or the other."""
    request = Frame(FrameFlag(0), 1, None, private_data)
    reply, agreed = mpa.accept_frame(request, b"", crc=False)
    assert (agreed.ird, agreed.ord, reply.limits) == (16, expected_ord, None)
    assert mpa.complete_request(mpa.request_frame(b"", crc=False, revision=1), request) == agreed
    said = private_data not in (b"", b"from client") and mpa.legacy_depths(private_data) is not None
    assert reply.private_data == (legacy("big", 16, expected_ord) if said else b"")
    assert mpa.accept_frame(request, b"own", crc=False)[0].private_data == b"own"


def test_initiator_of_revision_1_says_its_depths() -> None:
    request = mpa.request_frame(b"", crc=False, revision=1)
    assert request.private_data == legacy("big", 16, 16)
    reply, agreed = mpa.accept_frame(request, b"", crc=False)
    assert agreed == mpa.complete_request(request, reply) == mpa.Parameters(1, False, 16, 16)
    assert mpa.request_frame(b"own", crc=False, revision=1).private_data == b"own"


def test_depths_in_private_data_do_not_count_in_revision_2() -> None:
    request = Frame(ENHANCED, 2, ReadLimits(2, 0), legacy("big", 32, 1))
    reply, agreed = mpa.accept_frame(request, b"", crc=False)
    assert (agreed.ord, reply.private_data) == (2, b"")
