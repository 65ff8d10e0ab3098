"""Our server keeps every rule, on every fabric. The cases that wait for timers run together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smb3server.lab.conformance import own
from smb3server.lab.conformance.own import FABRICS
from smb3server.lab.conformance.registry import load
from smb3server.lab.conformance.verdict import Verdict
from smbdirect.providers.loopback import CAPABILITIES as LOOPBACK
from smbdirect.providers.loopback import LoopbackProvider
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


def test_fabric_that_needs_registered_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As verbs does, on which no case is run here."""
    like_verbs = LoopbackProvider(replace(LOOPBACK, requires_registration=True))
    monkeypatch.setattr(own, "make_provider", lambda fabric: like_verbs)
    names = (
        "BVT_SmbdNegotiate_Basic",
        "SmbdNegotiate_UncompletedMessage",
        "BVT_SmbdCreditMgmt_OperationWithMinimumCredits",
    )
    found = results("loopback", [CASES[name] for name in (*names, "SmbdDataTransfer_SmallLengthSegment")])
    assert not [told(each) for each in found if each.verdict is not Verdict.PASS]
