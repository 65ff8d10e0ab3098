"""Where a share has moved, in an error response (MS-SMB2 2.2.2.2.2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smb3server.wire import share_redirect as redirect


@given(st.lists(st.ip_addresses(), max_size=4), st.text(max_size=20))
def test_share_redirect(addresses: list[redirect.Address], name: str) -> None:
    try:
        name.encode("utf-16-le")
    except UnicodeEncodeError:
        return
    assert redirect.parse(redirect.pack(addresses, name)) == (addresses, name)


@given(st.binary(max_size=80))
def test_bad_share_redirect(data: bytes) -> None:
    try:
        redirect.parse(data)
    except ValueError:
        return
