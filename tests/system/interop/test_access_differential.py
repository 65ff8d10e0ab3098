"""Who allows what: this server beside Samba's smbd."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tools.access_differential import compare, servers
from tools.access_differential.__main__ import Run, running_pair
from tools.access_differential.compare import Difference, Kind
from tools.access_differential.generate import make_round
from tools.access_differential.player import Outcome
from tools.access_differential.shrink import shrink
from tools.access_differential.steps import ALL, Do, Step, from_json, to_json

ROUNDS, OPERATIONS = 8, 15
DENIED = 0xC0000022


@pytest.mark.interop
@pytest.mark.root
@pytest.mark.skipif(bool(servers.missing()), reason=servers.missing())
@pytest.mark.parametrize("act_as_users", [True, False], ids=["users-of-the-host", "one-user-of-the-host"])
def test_nothing_is_allowed_that_samba_denies(act_as_users: bool) -> None:
    """The same operations of two users; what differs and matters must be explained in explained.toml."""
    with running_pair(act_as_users=act_as_users) as (ours, theirs):
        run = Run(ours, theirs, compare.load())
        for number in range(ROUNDS):
            round_ = make_round(random.Random(f"test/{number}"), OPERATIONS)
            failures = run.play(round_)
            assert not failures, "\n".join(
                [str(failures[0]), "after:", *map(str, run.shorten(round_, failures[0]))],
            )


def _step(**given: object) -> Step:
    return Step(**{"user": 1, "path": "a.txt", "access": ALL, **given})  # type: ignore[arg-type]


def test_rounds_survive_json() -> None:
    for step in make_round(random.Random(5), 200):
        assert from_json(to_json(step)) == step


def test_shrinking_keeps_what_matters_only() -> None:
    asked: list[list[int]] = []

    def fails(items: list[int]) -> bool:
        asked.append(items)
        return 3 in items and 17 in items

    assert shrink(list(range(40)), fails) == [3, 17]
    assert len(asked) < 120


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (Outcome(0), Outcome(DENIED), Kind.ALLOWED),
        (Outcome(0), Outcome(0, DENIED), Kind.ALLOWED),
        (Outcome(0, DENIED), Outcome(0), Kind.DENIED),
        (Outcome(DENIED), Outcome(0xC0000034), Kind.STATUS),
        (Outcome(0, DENIED), Outcome(DENIED), Kind.ALLOWED),
        (Outcome(DENIED), Outcome(0, DENIED), Kind.DENIED),
        (Outcome(0, 0, 0x7), Outcome(0, 0, 0x3), Kind.ALLOWED),
        (Outcome(0, 0, 0x3), Outcome(0, 0, 0x7), Kind.DENIED),
    ],
)
def test_more_access_here_is_told_from_less(ours: Outcome, theirs: Outcome, kind: Kind) -> None:
    found = compare.of_step(_step(do=Do.QUERY_ACCESS), ours, theirs)
    assert found is not None
    assert found.kind == kind


def test_equal_answers_are_no_difference() -> None:
    for outcome in (Outcome(0, 0, 7), Outcome(DENIED), Outcome(0, DENIED)):
        assert compare.of_step(_step(do=Do.QUERY_ACCESS), outcome, outcome) is None


def test_explanations_must_be_narrow(tmp_path: Path) -> None:
    """One that gives no more than kind, reason and section would explain everything away."""
    table = tmp_path / "table.toml"
    table.write_text('[[explained]]\nkind = "allowed"\nreason = "r"\nsection = "s"\ntheirs = "ACCESS_DENIED"\n')
    with pytest.raises(ValueError, match="conditions"):
        compare.load(table)
    table.write_text('[[explained]]\nkind = "denied"\nreason = "r"\nsection = ""\n')
    with pytest.raises(ValueError, match="section"):
        compare.load(table)


def test_explanations_hold_for_what_they_name_only(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(
        '[[explained]]\nkind = "allowed"\nreason = "r"\nsection = "s"\n'
        'ours = "SUCCESS"\ntheirs = "ACCESS_DENIED"\nat = "action"\ndo = ["ea"]\nstream = true\n'
    )
    (known,) = compare.load(table)
    step = _step(do=Do.EA, path="a.txt:s")
    assert known.holds(Difference(Kind.ALLOWED, step, "SUCCESS", "ACCESS_DENIED", "action"))
    for other in (
        Difference(Kind.DENIED, step, "SUCCESS", "ACCESS_DENIED", "action"),
        Difference(Kind.ALLOWED, step, "SUCCESS", "ACCESS_DENIED", "open"),
        Difference(Kind.ALLOWED, step, "SUCCESS", "INVALID_OWNER", "action"),
        Difference(Kind.ALLOWED, _step(do=Do.EA), "SUCCESS", "ACCESS_DENIED", "action"),
        Difference(Kind.ALLOWED, _step(do=Do.RENAME, path="a.txt:s"), "SUCCESS", "ACCESS_DENIED", "action"),
    ):
        assert not known.holds(other)


def test_the_table_of_explanations_is_narrow_and_gives_sections() -> None:
    """``load`` raises for an entry that is not."""
    for explanation in compare.load():
        assert explanation.section.startswith(("MS-", "docs/")), explanation
