"""Uids and gids of the domain: the same on every node, and never those of another."""

from __future__ import annotations

import pytest

from smb3server.access.descriptor import Sid
from smb3server.domain.ids import Ids
from smb3server.settings.domain import SLICE

OWN, OTHER, THIRD = (Sid.parse(f"S-1-5-21-{number}-2-3") for number in (1, 7, 8))


def user(domain: Sid, rid: int) -> Sid:
    return domain._replace(sub_authorities=(*domain.sub_authorities, rid))


def ids(method: str, first: int = 100_000, last: int = 999_999) -> Ids:
    made = Ids(method, first, last)  # type: ignore[arg-type]
    made.own_domain = OWN
    return made


def test_rid_adds_the_rid() -> None:
    made = ids("rid", 5000, 6000)
    assert [made.of(user(OWN, rid)) for rid in (0, 500, 1000, 1001)] == [5000, 5500, 6000, None]
    assert made.of(user(OTHER, 500)) is None


def test_nothing_is_known_before_the_domain_is() -> None:
    assert Ids("rid", 5000, 6000).of(user(OWN, 500)) is None


@pytest.mark.parametrize("method", ["rid", "autorid"])
@pytest.mark.parametrize("sid", ["S-1-5-32-544", "S-1-5-18", "S-1-1-0", "S-1-22-1-0", "S-1-5-21-1-2-3", "S-1-18-1"])
def test_others_than_those_of_domains_have_none(method: str, sid: str) -> None:
    assert ids(method).of(Sid.parse(sid)) is None


def test_autorid_gives_each_domain_a_slice_of_its_own() -> None:
    made = ids("autorid", 100_000, 100_000 + 200 * SLICE - 1)
    assert made.of(user(OWN, 1104)) == 101_104
    found = made.of(user(OTHER, 1104))
    assert found is not None and found % SLICE == 1104 and found >= 200_000
    large = made.of(user(OWN, SLICE + 5))
    assert large is not None and large % SLICE == 5 and large // SLICE not in (1, found // SLICE)


def test_autorid_does_not_depend_on_who_came_first() -> None:
    """Nodes of a cluster see users in different orders."""
    sids = [user(OTHER, 1), user(THIRD, 2), user(OWN, 3)]
    one, two = (ids("autorid", 100_000, 100_000 + 500 * SLICE - 1) for _ in range(2))
    assert [one.of(sid) for sid in sids] == [two.of(sid) for sid in reversed(sids)][::-1]


def test_autorid_never_gives_a_number_twice() -> None:
    """With two slices all other domains would have the second."""
    made = ids("autorid", 100_000, 299_999)
    assert made.of(user(OTHER, 1104)) == 201_104
    assert made.of(user(THIRD, 1104)) is None
    assert made.of(user(OWN, 1104)) == 101_104


def test_rid_has_a_range_for_each_trusted_domain() -> None:
    made = Ids("rid", 5000, 6000, {OTHER: (7000, 8000)})
    made.own_domain = OWN
    assert [made.of(user(OTHER, rid)) for rid in (500, 1000, 1001)] == [7500, 8000, None]
    assert made.of(user(OWN, 500)) == 5500 and made.of(user(THIRD, 500)) is None
    assert f"`trusted_ranges` has no range for {THIRD}" in made.lacks(user(THIRD, 500))
    assert "`trusted_ranges` is too narrow" in made.lacks(user(OTHER, 1001))
    assert made.lacks(user(OWN, 1001)) == "id_range is too narrow"
