"""What is kept of descriptors that were asked about: its memory has a bound, whatever clients store."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from smb3server.access.check import Token, granted_access
from smb3server.access.descriptor import Acl, Control, SecurityDescriptor, Sid, allow, unpack
from smb3server.access.known_descriptors import KnownDescriptors
from smb3server.access.masks import FILE_ALL_ACCESS

USER = Sid(5, (21, 1, 2, 3, 1001))
TOKEN = Token(USER, frozenset({USER}), USER)
SMALLEST = Sid(1, ())


def descriptor(number: int, entries: int, who: Sid = USER) -> bytes:
    """A different one for each number."""
    aces = (allow(Sid(5, (22, number)), 1), *[allow(who, FILE_ALL_ACCESS)] * entries)
    return SecurityDescriptor(USER, None, Acl(aces), None, int(Control.DACL_PRESENT)).pack()


def tokens(number: int) -> Token:
    return TOKEN._replace(user=Sid(5, (21, number)))


def large(known: KnownDescriptors, number: int) -> None:
    known.granted(known.find(descriptor(number, 1700)), TOKEN)


def large_of_small_entries(known: KnownDescriptors, number: int) -> None:
    known.granted(known.find(descriptor(number, 3000, SMALLEST)), TOKEN)


def small(known: KnownDescriptors, number: int) -> None:
    known.granted(known.find(descriptor(number, 1)), TOKEN)


def garbage(known: KnownDescriptors, number: int) -> None:
    known.find(bytes(60000) + number.to_bytes(4, "big"))


ASKERS = [tokens(number) for number in range(1000)]


def many_users(known: KnownDescriptors, number: int) -> None:
    entry = known.find(descriptor(number // 100, 1))
    for token in ASKERS[number % 100 * 10 : number % 100 * 10 + 10]:
        known.granted(entry, token)


@pytest.mark.parametrize(
    ("fill", "times"), [(large, 6), (large_of_small_entries, 6), (small, 1500), (garbage, 10), (many_users, 2000)]
)
def test_memory_has_a_bound(fill: Callable[[KnownDescriptors, int], None], times: int) -> None:
    limit = 2 << 20
    known = KnownDescriptors(limit)
    tracemalloc.start()
    try:
        for number in range(times):
            fill(known, number)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(known) > 1 and limit / 2 < known.size <= limit
    assert taken < 1.2 * limit


def test_answers_are_those_of_the_descriptor() -> None:
    known = KnownDescriptors()
    data = descriptor(1, 1)
    entry = known.find(data)
    assert entry.parsed == unpack(data) and entry.has_dacl
    for _ in range(2):
        assert known.granted(entry, TOKEN) == granted_access(unpack(data), TOKEN) == FILE_ALL_ACCESS
    assert known.find(bytes(data)) is entry
    damaged = known.find(b"damaged")
    assert damaged.parsed is None and not damaged.has_dacl
    with pytest.raises(ValueError):
        known.granted(damaged, TOKEN)


def test_what_is_asked_about_stays() -> None:
    known = KnownDescriptors(20000)
    first = known.find(descriptor(0, 1))
    for number in range(1, 100):
        known.find(descriptor(number, 1))
        assert known.find(descriptor(0, 1)) is first
    assert len(known) < 20
    assert known.find(descriptor(1, 1)).granted == {}, "parsed anew"


def test_one_larger_than_all_may_take_is_not_kept() -> None:
    known = KnownDescriptors(1000)
    entry = known.find(descriptor(1, 100))
    assert known.granted(entry, TOKEN) == FILE_ALL_ACCESS
    assert (len(known), known.size) == (0, 0)
