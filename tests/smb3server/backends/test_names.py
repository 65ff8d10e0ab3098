"""Windows naming rules (MS-FSCC 2.1.5) and the mapping to names on disk."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.backends import names
from smb3server.backends.names import InvalidName
from smb3server.wire.upcase import upcase


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ((), "", None)),
        ("a", (("a",), "", None)),
        ("a\\b c\\d.txt", (("a", "b c", "d.txt"), "", None)),
        ("a\\\\b\\\\\\c:s", (("a", "b", "c"), "s", None)),
        ("a:s", (("a",), "s", None)),
        ("a\\b:s:$DATA", (("a", "b"), "s", None)),
        ("a:s:$data", (("a",), "s", None)),
        ("a::$DATA", (("a",), "", False)),
        (":s", ((), "s", None)),
        (":s:$DATA", ((), "s", None)),
        ("::$INDEX_ALLOCATION", ((), "", True)),
        ("d::$INDEX_ALLOCATION", (("d",), "", True)),
        ("d:$I30:$INDEX_ALLOCATION", (("d",), "", True)),
        ("a:s*?", (("a",), "s*?", None)),
        ("a.", (("a.",), "", None)),
    ],
)
def test_split(text: str, expected: tuple[tuple[str, ...], str, bool | None]) -> None:
    assert names.split_path(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a:", "a::", "a:s:", "a:s:$BAD", "a:s:$DATA:x", "a\\", "\\a", "\\\\a", "a\\\\", "a\\b\\\\",
        "..", "a\\..\\b", ".", "a/b", "a*",
        "a?",
        "a<", "a>", 'a"', "a|", "a\x01", "a\0", "a:s\\b", "a:s\0", "d:x\\f", "a:x:$INDEX_ALLOCATION", "x" * 256,
        "a:" + "s" * 256, "😀" * 128, "a\\" * 20000 + "b", "a:s/t",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        names.split_path(text)


def test_limits() -> None:
    assert names.split_path("x" * 255)[0] == ("x" * 255,)
    assert names.split_path("😀" * 127 + "x")[0] == ("😀" * 127 + "x",)
    assert names.split_path("a:" + "s" * 255)[1] == "s" * 255


@given(st.text())
def test_split_never_breaks(text: str) -> None:
    try:
        path, stream, _ = names.split_path(text)
    except InvalidName:
        return
    for component in path:
        names.check_component(component)
    assert ":" not in stream
    assert "\\" not in stream


def test_wildcards() -> None:
    assert names.has_wildcards("a*")
    assert not names.has_wildcards("abc")


@pytest.mark.parametrize(
    ("disk", "wire"),
    [
        ("plain", "plain"),
        ("a:b", "a\uf022b"),
        ('"*<>?\\|', "\uf020\uf021\uf023\uf024\uf025\uf026\uf027"),
        ("end.", "end\uf029"),
        ("end ", "end\uf028"),
        ("tab\t", "tab\uf009"),
        (os.fsdecode(b"caf\xe9"), "caf\uf7e9"),
        (".", "\uf029"),
    ],
)
def test_mapping(disk: str, wire: str) -> None:
    assert names.to_wire(disk) == wire
    names.check_component(wire)
    if disk != ".":
        assert names.to_disk(wire) == disk


@given(st.binary(min_size=1, max_size=40).filter(lambda name: b"/" not in name and b"\0" not in name))
def test_any_name_on_disk_is_a_windows_name(raw: bytes) -> None:
    if raw in (b".", b".."):
        return
    disk = os.fsdecode(raw)
    wire = names.to_wire(disk)
    names.check_component(wire)
    private_use = any("\uf000" <= char <= "\uf7ff" for char in disk)
    assert private_use or os.fsencode(names.to_disk(wire)) == raw


@given(st.text(max_size=20))
def test_names_for_the_disk_are_single_components(wire: str) -> None:
    try:
        disk = names.to_disk(wire)
    except InvalidName:
        return
    assert disk not in ("", ".", "..")
    assert "/" not in disk
    assert "\0" not in disk
    os.fsencode(disk)


@given(st.text())
def test_upcase_is_stable(name: str) -> None:
    once = upcase(name)
    assert names.utf16_units(once) == names.utf16_units(name)
    assert upcase(once) == once or not name.isascii()


def test_upcase_like_windows() -> None:
    assert upcase("äöüß-éÿ-я") == "ÄÖÜß-ÉŸ-Я"
    assert upcase("ıſµ") == "ıſµ"
    assert upcase("a😀ａ") == "A😀Ａ"


@pytest.mark.parametrize("name", ["A", "file.txt", "README.MD", "AB1CDE~1.TXT", "12345678.123"])
def test_short_names_need_no_other(name: str) -> None:
    assert names.short_name(name) == ""


@pytest.mark.parametrize(
    "name", ["a long name.text", "x.tar.gz", ".profile", "123456789", "a b", "\u00e4.txt", "a.", "+;="]
)
def test_short_names_of_long_ones(name: str) -> None:
    short = names.short_name(name)
    stem, _, extension = short.partition(".")
    assert len(stem) <= 8 and len(extension) <= 3
    assert names.may_be_short(short)
    assert names.short_name(short) == ""
    assert names.short_name(name) == short


def test_short_names_differ() -> None:
    assert len({names.short_name(f"document number {i}.txt") for i in range(3000)}) == 3000


PLAIN_OR_NOT = st.lists(
    st.text(st.sampled_from("aB1 .~$\u00e9\uf028:*?\\/\x01\x7f") | st.characters(max_codepoint=127), max_size=6)
    | st.sampled_from(["..", ".", ".smb3server", ".SMB3SERVER", "x" * 255, "x" * 256, "a b.c", "CON"]),
    max_size=4,
)


@given(PLAIN_OR_NOT)
def test_plain_names_are_split_as_others_are(components: list[str]) -> None:
    name = "\\".join(components)
    path = names.split_plain(name)
    if path is not None:
        assert names.split_path(name) == (path, "", None)
        assert tuple(names.to_wire(names.to_disk(component)) for component in path) == path


def test_what_is_plain() -> None:
    assert names.split_plain("a b\\c.d~1 $#") == ("a b", "c.d~1 $#")
    assert names.split_plain("\\".join(["d"] * names.MAX_DEPTH)) is not None
    assert names.split_plain("\\".join(["d"] * (names.MAX_DEPTH + 1))) is None
    assert names.plain_on_disk(("a b", "c")) == b"a b/c"


@given(PLAIN_OR_NOT)
def test_plain_paths_on_disk(components: list[str]) -> None:
    path = tuple(components)
    joined = names.plain_on_disk(path)
    if joined is not None:
        disk = names.to_disk_path(path)
        assert joined == os.fsencode("/".join(disk))
        assert not any(map(names.is_private, disk))


_POSIX_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs", "Co")), min_size=1).filter(
    lambda name: name not in (".", "..") and names.utf16_units(name) <= 255
)


@given(st.lists(_POSIX_NAMES, min_size=1, max_size=4))
def test_names_of_posix_opens_come_back(components: list[str]) -> None:
    path = names.split_posix("/".join(components))
    assert [names.to_posix(component) for component in path] == components
    assert names.to_disk_path(path) == components


@given(st.text(st.characters(codec="utf-16"), max_size=80))
def test_no_name_of_a_posix_open_leaves_the_share(name: str) -> None:
    try:
        path = names.split_posix(name)
    except names.InvalidName:
        return
    for component in names.to_disk_path(path):
        assert component not in ("", ".", "..") and "/" not in component
