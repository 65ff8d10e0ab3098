"""The answer in which a controller says which site this machine is in."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("impacket", reason="needs the part domain")

from smb3server.domain.ldap_client import LdapError
from smb3server.domain.sites import site_in

HEAD = struct.pack("<HHI16s", 23, 0, 0x13FC, bytes(16))
FOREST = b"\x07example\x04test\0"
"""At offset 24, where pointers lead to."""
REST = b"\xc0\x18" + b"\x03dc1\xc0\x18" + b"\x07EXAMPLE\0" + b"\x03DC1\0" + b"\0" + b"\x04Main\0"


def answer(client: bytes) -> bytes:
    return HEAD + FOREST + REST + client


@pytest.mark.parametrize(("client", "site"), [(b"\x06Berlin\0", "Berlin"), (b"\0", ""), (b"\xc0\x18", None)])
def test_the_site_follows_the_names(client: bytes, site: str | None) -> None:
    if site is None:
        # A name with a dot is no site.
        with pytest.raises(LdapError, match="wrong name"):
            site_in(answer(client), "EXAMPLE.TEST")
    else:
        assert site_in(answer(client) + b"\x05\0\0\0\xff\xff\xff\xff", "EXAMPLE.TEST") == site


@pytest.mark.parametrize("size", range(len(answer(b"\x06Berlin\0"))))
def test_answers_that_are_cut_short_are_refused(size: int) -> None:
    with pytest.raises(LdapError):
        site_in(answer(b"\x06Berlin\0")[:size], "EXAMPLE.TEST")


@pytest.mark.parametrize(
    "client",
    [
        struct.pack(">H", 0xC000 | len(answer(b""))),
        b"\xff\xff",
        b"\x03..\xff\0",
        b"\x3f" + b"a" * 63 + b"\x01a\0",
        b"\x0b/etc/passwd\0",
    ],
)
def test_names_without_an_end_or_that_are_no_site_are_refused(client: bytes) -> None:
    with pytest.raises(LdapError):
        site_in(answer(client), "EXAMPLE.TEST")


def test_an_answer_of_another_kind_is_refused() -> None:
    with pytest.raises(LdapError, match="another kind"):
        site_in(b"\x13" + answer(b"\0")[1:], "EXAMPLE.TEST")


def test_the_answer_of_another_domain_is_refused() -> None:
    with pytest.raises(LdapError, match="another domain"):
        site_in(answer(b"\x06Berlin\0"), "OTHER.TEST")
