"""The claims of a PAC. Samba, which has the layouts of MS-PAC and MS-ADTS from another hand, has made them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from smb3server.access.claims import Claim, Claims, ClaimType
from smb3server.access.descriptor import Sid
from smb3server.compression import codecs
from smb3server.domain import claim_sets
from smb3server.domain.claim_sets import claims_of, device_groups
from smb3server.domain.pac import domain_user
from smb3server.wire.compression import CompressionAlgorithm
from tests.lab.domain_ticket import BUFFERS, RECORDED, signed, ticket

RECORDED_CLAIMS = {
    name: bytes.fromhex(text)
    for name, text in (
        line.split()
        for line in (Path(__file__).parent / "recorded_claims.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}
SET, DEVICE = RECORDED_CLAIMS["claims_set"], RECORDED_CLAIMS["device"]
CLAIMS = (
    Claim("ad://ext/countryCode", ClaimType.INT64, (156, -1)),
    Claim("ad://ext/size", ClaimType.UINT64, (2**64 - 1,)),
    Claim("ad://ext/department", ClaimType.STRING, ("IT", "Straße")),
    Claim("ad://ext/temporary", ClaimType.BOOLEAN, (1, 0)),
)


def metadata(data: bytes, form: int = 0, size: int | None = None) -> bytes:
    """A CLAIMS_SET_METADATA with another set than the recorded one."""
    plain = len(data) if size is None else size
    body = struct.pack("<IIIHxxIHxxIII", 0x20000, len(data), 0x20004, form, plain, 0, 0, 0, len(data)) + data
    body += bytes(-len(body) % 8)
    return struct.pack("<BBHIII", 1, 0x10, 8, 0xCCCCCCCC, len(body), 0) + body


@pytest.mark.parametrize("name", ["plain", "huffman"])
def test_claims_of_all_types_are_read(name: str) -> None:
    """Those of two sources. Samba compresses as Windows does, by LZ77+Huffman."""
    assert claims_of(RECORDED_CLAIMS[name]) == CLAIMS


def test_metadata_that_these_tests_write_is_as_the_recorded_one() -> None:
    """But for pointers, whose values say nothing, and for the padding."""
    assert len(metadata(SET)) == len(RECORDED_CLAIMS["plain"]) and claims_of(metadata(SET)) == CLAIMS


@pytest.mark.parametrize(
    ("form", "algorithm"),
    [(2, CompressionAlgorithm.LZNT1), (3, CompressionAlgorithm.LZ77), (4, CompressionAlgorithm.LZ77_HUFFMAN)],
)
def test_compressed_claims_are_read(form: int, algorithm: CompressionAlgorithm) -> None:
    data = SET
    packed = codecs.compress(algorithm, data, 1 << 16)
    assert packed is not None
    assert claims_of(metadata(packed, form, len(data))) == CLAIMS
    with pytest.raises(ValueError, match="claims"):
        claims_of(metadata(packed, form, len(data) - 1))


def test_the_recorded_pac_has_the_claim_of_its_controller() -> None:
    """The controller of Samba knew a claim type for countryCode, which no user had then."""
    assert domain_user(ticket()).claims == Claims(
        (Claim("ad://ext/countryCode:18f9ee54c6b15ef0", ClaimType.INT64, (0,)),)
    )


def test_a_pac_without_claims_has_none() -> None:
    """A controller may also send the buffer without content."""
    assert claims_of(b"") == ()
    assert domain_user(ticket(signed(with_buffers((13, b""))))).claims is None


def test_claims_that_grow_beyond_the_bound_take_no_memory() -> None:
    with pytest.raises(ValueError, match="claims of 4294967295 bytes"):
        claims_of(metadata(bytes(64), 4, 0xFFFFFFFF))
    with pytest.raises(ValueError, match="format 7"):
        claims_of(metadata(bytes(64), 7))


@pytest.mark.parametrize("cut", range(0, 200, 3))
def test_claims_cut_short_are_refused(cut: int) -> None:
    data = SET
    cut_short = data[:8] + struct.pack("<I", max(cut - 16, 0)) + data[12:cut] if cut > 12 else data[:cut]
    with pytest.raises(ValueError, match=r"cut short|malformed"):
        claims_of(metadata(cut_short))


def test_every_damage_is_an_error_or_other_claims() -> None:
    """No damaged byte makes a decoder raise anything else, or take more than is there."""
    data = metadata(SET)
    refused = 0
    for at in range(len(data)):
        for value in (0, 0xFF, data[at] ^ 0x10):
            damaged = data[:at] + bytes((value,)) + data[at + 1 :]
            try:
                found = claims_of(damaged)
            except ValueError:
                refused += 1
            else:
                assert len(found) <= len(CLAIMS)
    assert refused > len(data) // 4


def test_a_claim_of_an_unknown_type_is_left_out() -> None:
    """The union's default has nothing. [MS-ADTS 2.2.18.5]"""
    data = bytearray(SET)
    at = data.find(struct.pack("<HHI", ClaimType.BOOLEAN, ClaimType.BOOLEAN, 2))
    struct.pack_into("<HH", data, at, 9, 9)
    del data[at + 4 : at + 12]
    assert claims_of(metadata(bytes(data[:8]) + struct.pack("<I", len(data) - 16) + bytes(data[12:]))) == CLAIMS[:-1]


def test_the_groups_of_the_device_are_read() -> None:
    """Those that are disabled, and groups of this server, are left out."""
    names = ("1-2-3-1200", "1-2-3-515", "7-8-9-1300", "4-5-6-1400")
    wanted = {Sid.parse("S-1-18-1"), *(Sid.parse(f"S-1-5-21-{name}") for name in names)}
    assert device_groups(DEVICE) == wanted


@pytest.mark.parametrize("cut", range(0, len(DEVICE) - 24, 7))
def test_a_device_cut_short_is_refused(cut: int) -> None:
    data = DEVICE[:cut]
    if len(data) >= 16:
        data = data[:8] + struct.pack("<I", len(data) - 16) + data[12:]
    with pytest.raises(ValueError, match=r"cut short|malformed|many|device"):
        device_groups(data)


def test_many_groups_of_a_device_are_refused() -> None:
    data = bytearray(DEVICE)
    struct.pack_into("<I", data, 20 + 12, claim_sets.MAX_GROUPS + 1)
    with pytest.raises(ValueError, match="many groups"):
        device_groups(bytes(data))


def with_buffers(*added: tuple[int, bytes]) -> bytes:
    """The recorded PAC with more buffers, or with other ones of these types."""
    entries = [struct.unpack_from("<IIQ", RECORDED, 8 + 16 * index) for index in range(len(BUFFERS))]
    parts = {kind: RECORDED[at : at + size] for kind, size, at in entries} | dict(added)
    head = 8 + 16 * len(parts)
    packed, body = b"", b""
    for kind, data in parts.items():
        packed += struct.pack("<IIQ", kind, len(data), head + len(body))
        body += data + bytes(-len(data) % 8)
    return struct.pack("<II", len(parts), 0) + packed + body


def test_the_user_has_the_claims_of_its_pac() -> None:
    made = with_buffers((13, metadata(SET)), (14, DEVICE), (15, RECORDED_CLAIMS["huffman"]))
    user = domain_user(ticket(signed(made)))
    assert user.claims == Claims(CLAIMS, CLAIMS, device_groups(DEVICE))


def test_claims_without_a_right_signature_do_not_count() -> None:
    made = bytearray(signed(with_buffers((13, metadata(SET)))))
    made[made.find("Straße".encode("utf-16-le"))] ^= 1
    with pytest.raises(ValueError, match="forged"):
        domain_user(ticket(bytes(made)))


@pytest.mark.parametrize("kind", [13, 14, 15])
def test_malformed_claims_refuse_the_logon(kind: int) -> None:
    """As other malformed parts do: a claim that is left out could be one that denies."""
    data = DEVICE if kind == 14 else metadata(SET)
    with pytest.raises(ValueError, match=r"cut short|malformed"):
        domain_user(ticket(signed(with_buffers((kind, data[:-60])))))
