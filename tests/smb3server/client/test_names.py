"""Names that travel: each comes back, no two are one, and case is compared as servers do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smb3server.client import names

ODD = st.text(st.sampled_from("\uf000\uf022\uf028\uf029: .a*\uf021\x01\uf001\uf0ff"), min_size=1, max_size=8)


@given(ODD, ODD)
def test_each_name_comes_back_and_no_two_are_one(first: str, second: str) -> None:
    carried = names.to_share(first)
    if first not in (".", ".."):
        assert names.can_travel(carried)
    assert names.from_share(carried) == first
    assert (carried == names.to_share(second)) == (first == second)


@given(ODD)
def test_what_a_server_lists_is_opened_under_the_same_name(listed: str) -> None:
    if names.can_travel(listed) and names.is_listable(local := names.from_share(listed)):
        assert names.to_share(local) == listed


def test_names_are_compared_by_simple_upper_case() -> None:
    for first, second, same in (
        ("straße", "strasse", False),
        ("ﬁx", "fix", False),
        ("\u212a", "k", False),
        ("ı", "i", False),
        ("ſ", "s", False),
        ("Ä", "ä", True),
        ("Σ", "σ", True),
        ("Я", "я", True),
        ("e\u0301", "é", False),
    ):
        assert (names.key(first) == names.key(second)) is same, (first, second)


def test_substitutes_of_samba_are_known() -> None:
    assert all(map(names.may_be_substitute, ("AHY9U3~9.TXT", "CSHOFG~F")))
    assert not any(map(names.may_be_substitute, ("report~1.txt", "a~1", "Long name~1.doc", ".~lock.x#")))
