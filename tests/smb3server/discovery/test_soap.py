"""The reader of messages from strangers: what it keeps, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.discovery import soap
from smb3server.discovery.wsd_messages import read_request


def test_names_with_prefixes_are_resolved_where_they_stand() -> None:
    root = soap.parse(b'<a xmlns="urn:1" xmlns:p="urn:2"><b xmlns:p="urn:3">p:x y</b><c>p:z</c></a>')
    first, second = root.children
    assert (root.name, first.name) == (("urn:1", "a"), ("urn:1", "b"))
    assert first.names() == [("urn:3", "x"), ("urn:1", "y")]
    assert second.names() == [("urn:2", "z")]
    with pytest.raises(ValueError, match="unknown prefix"):
        soap.parse(b"<a>q:x</a>").names()


@pytest.mark.parametrize(
    "message",
    [
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><a>&y;</a>',
        b'<!DOCTYPE a SYSTEM "http://192.0.2.1/a.dtd"><a/>',
        b'<!DOCTYPE a [<!ENTITY % x SYSTEM "http://192.0.2.1/"> %x;]><a/>',
        b"<!DOCTYPE a><a/>",
    ],
)
def test_document_types_are_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="document types"):
        soap.parse(message)


def test_limits_hold() -> None:
    fits = b"<a>" * soap.MAX_DEPTH + b"</a>" * soap.MAX_DEPTH
    soap.parse(fits)
    many = "".join(f' xmlns:p{number}="u"' for number in range(soap.MAX_NAMESPACES + 1))
    for message, reason in (
        (b"<a>" + fits + b"</a>", "too many elements"),
        (b"<a>" + b"<b/>" * soap.MAX_ELEMENTS + b"</a>", "too many elements"),
        (f"<a{many}/>".encode(), "too many namespaces"),
        (b"<a>" + b" " * soap.MAX_SIZE + b"</a>", "too long"),
    ):
        with pytest.raises(ValueError, match=reason):
            soap.parse(message)


@given(st.binary(max_size=200) | st.text(alphabet="<>/ab:=\"' &;![]?-xmlns", max_size=200).map(str.encode))
def test_anything_else_is_a_value_error(message: bytes) -> None:
    try:
        read_request(message)
    except ValueError:
        return
    raise AssertionError("no envelope, and yet it was read")
