"""Places in TOML texts, against what tomllib reads from them."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smb3server.config.positions import KeyPath, Positions

TEXT = '''# A comment with [brackets] and "quotes"
title = "one # two"   # three
[server]
listen = [ # a comment ]
  "::",
  "0.0.0.0",
]
name."odd key".'x.y' = """
[no.table]
\\"""and more"""""

[[share]]
name = 'a'
options = { path = "/a", deep.er = [1, {x = 2}] }
[share.extra]
key = 1979-05-27 07:32:00
[[share]]
name = \'\'\'b\'\'\'
[[share.inner]]
first = -1.5e3
'''


def test_places_of_every_kind() -> None:
    found = Positions(TEXT)
    for path, place in {
        ("title",): (2, 1),
        ("server",): (3, 1),
        ("server", "listen"): (4, 1),
        ("server", "listen", 1): (6, 3),
        ("server", "name", "odd key", "x.y"): (8, 1),
        ("share", 0): (12, 1),
        ("share", 0, "options", "deep", "er", 1, "x"): (14, 41),
        ("share", 0, "extra", "key"): (16, 1),
        ("share", 1, "name"): (18, 1),
        ("share", 1, "inner", 0, "first"): (20, 1),
        ("share", 1, "missing"): (17, 1),
        ("missing",): (1, 1),
    }.items():
        assert found.find(path) == place, path
    assert found.paths() == set(paths(tomllib.loads(TEXT)))


def test_lines_may_end_as_on_windows() -> None:
    assert Positions('a = """\r\nx\r\n"""\r\nb = 1\r\n').find(("b",)) == (4, 1)


def paths(value: Any, above: KeyPath = ()) -> list[KeyPath]:
    """Every key and every entry below a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[KeyPath] = []
    for key, child in children:
        found += [(*above, key), *paths(child, (*above, key))]
    return found


def quoted(text: str) -> str:
    for old, new in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(old, new)
    return f'"{text}"'


KEYS = st.one_of(
    st.sampled_from(["a", "b", "c", "a-b", "1"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4).map(quoted),
    st.text(st.sampled_from('ab.#[]="{ '), max_size=4).map(lambda text: f"'{text}'"),
)
BLANKS = st.sampled_from(["", " ", "\t "])
ENDS = st.sampled_from(["\n", "\r\n", " # x = [1] '\n", "\n\n"])
SCALARS = st.one_of(
    st.sampled_from(["1", "-1.5e3", "true", "1979-05-27 07:32:00", "07:32:00.5", "inf", "0x1F", "''", '""']),
    st.text(st.sampled_from("ab'\"#[]\\{},\n"), max_size=6).map(quoted),
    st.sampled_from(['"""\n[a]\n"""', "'''x''y'''", '"""a\\""""""', '""""""""', "''''x'''''", '"""\\\n  b"""']),
)


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    between = st.sampled_from(["", " ", "\n", " # ]\n  "])
    inside = "".join(f"{draw(between)}{value}{draw(between)}," for value in draw(st.lists(values, max_size=3)))
    return f"[{inside}{draw(between)}]"


@st.composite
def inline_tables(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(KEYS, values), max_size=3))
    return "{" + ", ".join(f"{key}{draw(BLANKS)}={draw(BLANKS)}{value}" for key, value in pairs) + "}"


VALUES: st.SearchStrategy[str] = st.recursive(
    SCALARS, lambda inner: st.one_of(arrays(inner), inline_tables(inner)), max_leaves=6
)


@st.composite
def dotted(draw: st.DrawFn) -> str:
    return f"{draw(BLANKS)}.{draw(BLANKS)}".join(draw(st.lists(KEYS, min_size=1, max_size=3)))


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.integers(0, 4))
        keys, blank = draw(dotted()), draw(BLANKS)
        line = f"[{blank}{keys}{blank}]" if kind == 0 else f"[[{keys}]]" if kind == 1 else ""
        lines.append(f"{blank}{line or f'{keys}{blank}={blank}{draw(VALUES)}'}{draw(ENDS)}")
    return "".join(lines)


@given(documents())
def test_the_index_has_what_the_text_has(text: str) -> None:
    """Each key and entry that tomllib finds has a place, and nothing else has one."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert Positions(text).paths() == set(paths(document))
