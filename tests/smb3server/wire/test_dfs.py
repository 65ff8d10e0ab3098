"""Referral requests and responses (MS-DFSC 2.2.2 to 2.2.5)."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.wire.dfs import (
    Referral,
    ReferralFlags,
    ReferralRequest,
    ReferralTarget,
    pack_referral,
    pack_request,
    parse_extended_request,
    parse_referral,
    parse_request,
)
from smbdirect.errors import DecodeError
from tests.lab.examples import examples

TWO = [ReferralTarget("\\one\\share", True), ReferralTarget("\\two\\share\\folder", False)]
LINK = Referral(38, int(ReferralFlags.STORAGE_SERVERS | ReferralFlags.TARGET_FAILBACK), False, 300, "\\s\\n\\link", TWO)


def extended(path: str, site: str = "", flags: int = 0) -> bytes:
    data = struct.pack("<H", 2 * len(path)) + path.encode("utf-16-le")
    if flags:
        data += struct.pack("<H", 2 * len(site)) + site.encode("utf-16-le")
    return struct.pack("<HHI", 4, flags, len(data)) + data


def test_requests() -> None:
    asked = ReferralRequest(3, "\\server\\files\\ä")
    assert parse_request(pack_request(asked)) == asked
    # Some clients leave the null character out.
    assert parse_request(pack_request(asked)[:-2]) == asked
    assert parse_extended_request(extended("\\a\\b")) == ReferralRequest(4, "\\a\\b")
    assert parse_extended_request(extended("\\a\\b", "berlin", 1)) == ReferralRequest(4, "\\a\\b", "berlin")


@pytest.mark.parametrize(
    "data",
    [b"", b"\4", b"\4\0a", *(extended("\\a\\b", "berlin", 1)[:size] for size in (0, 7, 9, 14, 20, 30))],
    ids=len,
)
def test_requests_cut_short(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_extended_request(data)
    if len(data) <= 3:
        with pytest.raises(DecodeError):
            parse_request(data)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version(version: int) -> None:
    data = pack_referral(version, LINK, 4096)
    assert data is not None
    found = parse_referral(data)
    assert [target.address for target in found.targets] == [target.address for target in TWO]
    assert [target.begins_set for target in found.targets] == ([True, False] if version == 4 else [False, False])
    assert (found.path_consumed, found.root) == (38, False)
    assert (found.ttl, found.path) == ((0, "") if version == 1 else (300, LINK.path))
    # 3.2.5.5: version 1 has both bits; only version 4 knows of failback.
    assert found.flags == {1: 3, 2: 2, 3: 2, 4: 6}[version]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_only_whole_targets_that_fit(version: int) -> None:
    whole = pack_referral(version, LINK, 4096)
    one = pack_referral(version, LINK._replace(targets=TWO[:1]), 4096)
    assert whole is not None
    assert one is not None
    assert pack_referral(version, LINK, len(whole)) == whole
    assert pack_referral(version, LINK, len(whole) - 1) == one
    assert pack_referral(version, LINK, len(one)) == one
    assert pack_referral(version, LINK, len(one) - 1) is None


def test_more_targets_than_offsets_can_reach() -> None:
    many = LINK._replace(targets=[ReferralTarget(f"\\server-{number}\\{'x' * 80}") for number in range(2000)])
    data = pack_referral(4, many, 1 << 20)
    assert data is not None
    found = parse_referral(data)
    assert 200 < len(found.targets) < 2000
    assert found.targets[-1].address == many.targets[len(found.targets) - 1].address


@settings(max_examples=examples(200), deadline=None, database=None)
@given(st.binary(max_size=120), st.integers(0, 3), st.integers(0, 200), st.integers(0, 255))
def test_responses_of_any_content(noise: bytes, version: int, at: int, value: int) -> None:
    whole = pack_referral(version + 1, LINK, 4096)
    assert whole is not None
    damaged = bytearray(whole)
    damaged[at % len(damaged)] = value
    for data in (noise, bytes(damaged), whole[:at]):
        with contextlib.suppress(DecodeError):
            parse_referral(data)
