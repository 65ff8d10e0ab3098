"""Our server keeps every rule, on every fabric. The cases of a suite share one server: each case comes alone, but those
that wait for timers run together."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from smb3server.lab.conformance import own
from smb3server.lab.conformance.own import FABRICS
from smb3server.lab.conformance.registry import Case, load
from smb3server.lab.conformance.runner import AT_ONCE
from smb3server.lab.conformance.verdict import Verdict
from smbdirect.providers.loopback import CAPABILITIES as LOOPBACK
from smbdirect.providers.loopback import LoopbackProvider
from tests.lab.conformance import expected, result, results, told

CASES = load()
_SOME = [pytest.param(fabric, marks=[pytest.mark.long] if fabric == "roce" else []) for fabric in FABRICS]
"""RoCEv2 in the long run: what differs between the fabrics is tested below SMB Direct."""


def wrong(fabric: str, cases: Sequence[Case], at_once: int) -> list[str]:
    """Return what there is to say about each case whose verdict is not the expected one."""
    found = results(fabric, cases, at_once=at_once)
    assert [each.name for each in found] == [case.name for case in cases]
    return [told(each) for each in found if each.verdict is not expected(CASES[each.name], fabric)]


@pytest.mark.parametrize("fabric", _SOME)
@pytest.mark.parametrize("suite", dict.fromkeys(case.suite for case in CASES.values() if not case.waits))
def test_rules(suite: str, fabric: str) -> None:
    assert not wrong(fabric, [case for case in CASES.values() if case.suite == suite and not case.waits], at_once=1)


@pytest.mark.parametrize("fabric", FABRICS)
def test_rules_about_time(fabric: str) -> None:
    assert not wrong(fabric, [case for case in CASES.values() if case.waits], at_once=AT_ONCE)


def test_the_shared_folder_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    roots: list[str] = []
    backend = own.LocalBackend
    monkeypatch.setattr(own, "LocalBackend", lambda folder: roots.append(folder) or backend(folder))
    found = result("BVT_Smb2OverRdmaChannel_WriteLargeFile")
    assert found.verdict is Verdict.PASS, told(found)
    assert [Path(root).parent for root in roots] == [tmp_path] and not list(tmp_path.iterdir())


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
