"""Our server keeps every rule, on every fabric. The cases that wait for timers run together."""

from __future__ import annotations

import pytest

from smb3server.tools.conformance.own import FABRICS
from smb3server.tools.conformance.registry import load
from tests.lab.conformance import expected, result, results, told

CASES = load()


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.waits])
def test_rule(name: str, fabric: str) -> None:
    found = result(name, fabric)
    assert found.verdict is expected(CASES[name], fabric), told(found)


@pytest.mark.parametrize("fabric", FABRICS)
def test_rules_about_time(fabric: str) -> None:
    found = results(fabric, [case for case in CASES.values() if case.waits])
    assert not [told(each) for each in found if each.verdict is not expected(CASES[each.name], fabric)]
