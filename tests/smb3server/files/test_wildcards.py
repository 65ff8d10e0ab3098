"""Wildcard expressions (MS-FSA 2.1.4.4)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.files.searches import compile_expression
from tests.lab.examples import examples


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "anything.txt", True),
        ("", "x", True),
        ("a*", "ABC", True),
        ("*.txt", "a.b.TXT", True),
        ("*.txt", "atxt", False),
        ("?", "", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("<.txt", "a.b.txt", True),
        ("<.b", "a.b.c", False),
        ("<", "noextension", True),
        ("<", "name.ext", False),
        ("<", "name.", True),
        ("<ext", "name.ext", True),
        ("<t", "a.b.t", True),
        ("<b", "a.b.t", False),
        ('<"', "name", True),
        ('<"', "name.", True),
        ('abc"', "abc", True),
        ('abc"d', "abc.d", True),
        ('abc"d', "abcd", False),
        ("a>>>>.b", "axy.b", True),
        ("a>>", "a", True),
        ("a>>", "axyz", False),
        (">>>>>>>>.>>>", "short.c", True),
        ("Ä*", "ähnlich", True),
        ("exact", "EXACT", True),
        ("exact", "exact2", False),
        ("a\nb*", "A\nBc", True),
    ],
)
def test_matching(pattern: str, name: str, expected: bool) -> None:
    assert compile_expression(pattern)(name) is expected


def _reference(pattern: str, name: str) -> bool:
    """The definition, by recursion over both strings."""
    last_dot = name.rfind(".")

    def match(p: int, n: int) -> bool:
        if p == len(pattern):
            return n == len(name)
        char = pattern[p]
        end = n == len(name)
        if char == "*":
            return match(p + 1, n) or (not end and match(p, n + 1))
        if char == "<":
            beyond_dot = n == last_dot and match(p + 1, n + 1)
            return match(p + 1, n) or beyond_dot or (not end and n != last_dot and match(p, n + 1))
        if char == ">":
            if end or name[n] == ".":
                return match(p + 1, n)
            return match(p + 1, n + 1)
        if char == '"':
            return match(p + 1, n) if end else name[n] == "." and match(p + 1, n + 1)
        if end:
            return False
        return (char == "?" or char.upper() == name[n].upper()) and match(p + 1, n + 1)

    return match(0, 0)


@settings(max_examples=examples(400), deadline=None)
@given(st.text('ab.*?<>"', max_size=7), st.text("aB.", max_size=8))
def test_agrees_with_definition(pattern: str, name: str) -> None:
    assert compile_expression(pattern)(name) is (_reference(pattern, name) if pattern.strip("*") else True)


@pytest.mark.parametrize("pattern", ["*a" * 60 + "b", "<a" * 60 + "b", "*?" * 60 + "b"])
def test_hostile_patterns_take_bounded_time(pattern: str) -> None:
    started = time.perf_counter()
    assert not compile_expression(pattern)("a" * 255)
    assert time.perf_counter() - started < 1
