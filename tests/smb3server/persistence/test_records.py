"""Records of opens that no server has written are refused before anything is done with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.persistence.records import parse

GOOD: dict[str, Any] = {
    "format": 2, "id": 5, "share": "data", "path": ["d", "f"], "stream": "", "inode": 77, "directory": False,
    "create_guid": "00" * 16, "client_guid": "00" * 16, "identity": ["bob", "", False, False], "timeout": 300.0,
    "access": [0x1F01FF, 0x1F01FF, 7], "options": 0, "action": 1, "delete": [False, False],
    "caching": [7, False, 0, 0, 0, "00" * 16, "00" * 16, 2, 3, ""], "locks": "", "sequences": [], "app": None,
    "app_version": None,
}  # fmt: skip


def test_a_good_record_has_no_credentials() -> None:
    for fields in (GOOD, {**GOOD, "format": 1, "user": [0, 0, []]}):
        record = parse(json.dumps(fields).encode())
        assert record.path == ("d", "f") and record.identity.name == "bob" and record.identity.user is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 3), ("id", "5"), ("id", -1), ("id", 1 << 64), ("id", 1.5), ("share", 5), ("path", [".."]),
        ("path", ["a/b"]), ("path", ["a\0"]), ("path", [""]), ("path", [5]), ("path", 5), ("stream", None),
        ("inode", "x"), ("directory", "no"), ("create_guid", "00"), ("client_guid", "zz"), ("client_guid", 5),
        ("identity", ["bob"]), ("identity", [5, "", False, False]), ("identity", ["bob", "", "no", False]),
        ("timeout", "1"), ("timeout", -1), ("timeout", 1e9), ("access", [1, 2]), ("access", ["1", 2, 3]),
        ("options", None), ("delete", [False]), ("delete", ["a", "b"]), ("caching", [1]), ("caching", [1] * 20),
        ("caching", ["a", False, 0, 0]), ("caching", [7, False, 0, 0, 0, 5, 5, 2, 3, ""]), ("locks", 5),
        ("locks", "AAAA"), ("sequences", [1]), ("sequences", [["a", "b"]]), ("app", "00"), ("app_version", [1]),
        ("app_version", ["a", "b"]), ("parent_lease_key", "00"), ("parent_lease_key", 5), ("name_deleted", "no"),
    ],
)  # fmt: skip
def test_a_bad_field(key: str, value: Any) -> None:
    with pytest.raises(ValueError):
        parse(json.dumps({**GOOD, key: value}).encode())


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_field(key: str) -> None:
    with pytest.raises(ValueError):
        parse(json.dumps({name: value for name, value in GOOD.items() if name != key}).encode())


def test_nesting_is_refused() -> None:
    with pytest.raises(ValueError):
        parse(b"[" * 100000 + b"]" * 100000)


@given(st.binary(max_size=80) | st.sampled_from([b"{}", b"[]", b'{"format":1}', b'{"format":2}', b"null"]))
def test_bad_records(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)
