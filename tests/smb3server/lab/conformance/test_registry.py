"""The cases have names, rules and an order, and are chosen by patterns."""

from __future__ import annotations

import pytest

from smb3server.lab.conformance.registry import SUITES, case, load, select
from smb3server.lab.conformance.trial import Trial


async def kept(trial: Trial) -> None:
    """A rule."""


async def unsaid(trial: Trial) -> None:
    pass


def test_cases_say_their_rule_and_section() -> None:
    for name, entry in load().items():
        assert entry.rule.endswith("."), name
        assert entry.section.startswith(("MS-SMBD ", "MS-SMB2 ")), name


def test_suites_are_not_torn_apart() -> None:
    suites = [entry.suite for entry in load().values()]
    changes = [suite for before, suite in zip(["", *suites], suites, strict=False) if suite != before]
    assert len(changes) == len(set(changes))
    assert tuple(changes[: len(SUITES)]) == SUITES


def test_patterns_choose_by_name_and_by_suite() -> None:
    assert [entry.name for entry in select(["BVT_SmbdNegotiate_*"])] == ["BVT_SmbdNegotiate_Basic"]
    assert {entry.suite for entry in select(["SmbdCreditManagement"])} == {"SmbdCreditManagement"}
    assert len(select(["SmbdCreditManagement", "*Credit*"])) == len(select(["*Credit*", "SmbdCreditManagement"]))
    assert select([]) == list(load().values())
    with pytest.raises(ValueError, match="no case matches"):
        select(["BVT_SmbdNegotiate_*", "Smbd?"])


def test_a_case_needs_a_new_name_and_a_rule() -> None:
    with pytest.raises(ValueError):
        case("Suite", "BVT_SmbdNegotiate_Basic", "MS-SMBD 1")(kept)
    with pytest.raises(ValueError):
        case("Suite", "Unsaid", "MS-SMBD 1")(unsaid)
    assert "Unsaid" not in load()
