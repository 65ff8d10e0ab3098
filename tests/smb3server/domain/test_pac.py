"""What the PAC of a ticket proves. The recorded one is of a Samba controller; the domain and its keys are gone."""

from __future__ import annotations

import struct

import pytest

from smb3server.access.descriptor import Sid
from smb3server.domain import pac
from smb3server.domain.pac import domain_user
from tests.lab.domain_ticket import BUFFERS, KEY, RECORDED, signed, ticket

DOMAIN = "S-1-5-21-2978586452-3620782389-100791958"
USER = Sid.parse(f"{DOMAIN}-1104")


def changed(kind: int, offset: int, value: bytes) -> bytearray:
    """The recorded PAC with other bytes in one of its buffers."""
    made = bytearray(RECORDED)
    start = BUFFERS[kind][0] + offset
    made[start : start + len(value)] = value
    return made


def test_the_user_has_the_groups_of_the_controller() -> None:
    """Nested groups, groups of the resource domain, and the asserted identity."""
    user = domain_user(ticket())
    assert (user.name, user.domain, user.realm) == ("AzUser01", "CONTOSO", "CONTOSO.COM")
    assert (user.sid, str(user.primary_group)) == (USER, f"{DOMAIN}-513")
    groups = {f"{DOMAIN}-{rid}" for rid in (513, 1105, 1117, 1118)}
    assert {str(sid) for sid in user.groups} == groups | {"S-1-5-21-0-0-0-497", "S-1-18-1"}
    assert not user.guest and not user.session_key


def test_a_right_signature_of_our_own_is_taken() -> None:
    """Otherwise the tests below would be about the signature alone."""
    assert signed(RECORDED) == RECORDED


@pytest.mark.parametrize("at", range(0, len(RECORDED), 7))
def test_each_byte_is_protected(at: int) -> None:
    """All but the KDC's signature, which is made of the server's with a key that a member does not have."""
    start, end = BUFFERS[pac.KDC_CHECKSUM]
    forged = bytearray(RECORDED)
    forged[at] ^= 0x40
    if start + 4 <= at < end:
        assert domain_user(ticket(bytes(forged))).sid == USER
        return
    with pytest.raises(ValueError, match=r"PAC|SID"):
        domain_user(ticket(bytes(forged)))


@pytest.mark.parametrize("size", [*range(0, 200, 13), *range(200, len(RECORDED), 97)])
def test_a_pac_cut_short_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="PAC"):
        domain_user(ticket(RECORDED[:size]))


def test_a_ticket_without_a_pac_is_refused() -> None:
    with pytest.raises(ValueError, match="no PAC"):
        domain_user(ticket(None))


@pytest.mark.parametrize("kind", [pac.LOGON_INFO, pac.SERVER_CHECKSUM, pac.KDC_CHECKSUM, pac.CLIENT_INFO])
def test_a_pac_without_one_of_its_parts_is_refused(kind: int) -> None:
    made = bytearray(RECORDED)
    for index in range(len(BUFFERS)):
        place = 8 + index * 16
        if struct.unpack_from("<I", made, place)[0] == kind:
            struct.pack_into("<I", made, place, 77)
    if kind in (pac.LOGON_INFO, pac.CLIENT_INFO):
        made = bytearray(signed(made))
    with pytest.raises(ValueError, match=f"no buffer of type {kind}"):
        domain_user(ticket(bytes(made)))


@pytest.mark.parametrize(
    ("key", "key_type"), [(bytes(32), 18), (KEY[:16], 17), (KEY[:16], 23), (KEY, 20)], ids=["other", "128", "rc4", "20"]
)
def test_a_signature_with_another_key_is_refused(key: bytes, key_type: int) -> None:
    with pytest.raises(ValueError, match="signature"):
        domain_user(ticket(key=key, key_type=key_type))


def test_the_pac_of_another_user_or_ticket_is_refused() -> None:
    with pytest.raises(ValueError, match="another user than the ticket"):
        domain_user(ticket(client="Administrator"))
    with pytest.raises(ValueError, match="another ticket"):
        domain_user(ticket()._replace(authentication_time=1795719499))


def test_parts_that_contradict_each_other_are_refused() -> None:
    """The service's own key signs them, as if a controller had made them wrong."""
    sid_at = struct.unpack_from("<H", RECORDED, BUFFERS[pac.UPN_DNS_INFO][0] + 18)[0]
    other = USER._replace(sub_authorities=(*USER.sub_authorities[:-1], 500)).pack()
    with pytest.raises(ValueError, match="two SIDs"):
        domain_user(ticket(signed(changed(pac.UPN_DNS_INFO, sid_at, other))))


@pytest.mark.parametrize(
    ("kind", "offset", "value"),
    [
        (pac.CLIENT_INFO, 8, b"\xff\xff"),
        (pac.UPN_DNS_INFO, 4, b"\xff\xff"),
        (pac.UPN_DNS_INFO, 18, b"\xff\xff"),
        (pac.LOGON_INFO, 0, b"\x02"),
        (pac.LOGON_INFO, 20 + 48 + 4, bytes(4)),
        (pac.LOGON_INFO, 20 + 100, bytes(4)),
    ],
)
def test_malformed_parts_are_refused(kind: int, offset: int, value: bytes) -> None:
    """The service's own key signs them. A decoder's error must be no traceback."""
    try:
        user = domain_user(ticket(signed(changed(kind, offset, value))))
    except ValueError as error:
        assert len(str(error)) < 300
    else:
        # Without the pointer to its name the user has that of the ticket.
        assert user.name == "AzUser01"


def test_many_groups_take_bounded_time_and_memory() -> None:
    """A count of groups that are not there is no reason to allocate them."""
    count_at = 20 + 48 + 48 + 4 + 8
    with pytest.raises(ValueError, match=r"PAC|groups|SID"):
        domain_user(ticket(signed(changed(pac.LOGON_INFO, count_at, b"\xff\xff\xff\x7f"))))
