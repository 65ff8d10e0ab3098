"""What the doctor and ``domain status`` say of central access policies."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("impacket", reason="needs the part domain")

from smb3server.access.descriptor import Sid
from smb3server.doctor.domain import _DomainCheck
from smb3server.doctor.findings import Finding, Verdict
from smb3server.domain.central_policies import CentralPolicies, PolicyText, RuleText, file_of
from smb3server.domain.keytab import Version
from smb3server.domain.machine import Account, Machine
from smb3server.settings.domain import DomainConfig


class Directory:
    """Has the policies of a test."""

    def __init__(self, *rules: str) -> None:
        self._rules = rules

    def ask(self, question: object) -> list[PolicyText]:
        return [
            PolicyText(Sid(17, (1, number)), f"Policy {number}", (RuleText(f"Rule {number}", "", rule),))
            for number, rule in enumerate(self._rules)
        ]


def findings(folder: Path, names: Sequence[str] | None = None) -> list[Finding]:
    config = DomainConfig("CORP.TEST", "CORP", folder / "keytab", "FILES", folder / "secret")
    config.central_policies = tuple(names) if names is not None else None
    machine = Machine(folder / "secret", folder / "keytab")
    account = Account("CORP.TEST", "CORP", "FILES", "files.corp.test", "S-1-5-21-1-2-3", (Version("pw", 1, 0),))
    machine.write(account)
    return list(_DomainCheck(config)._policies(machine))


def read(folder: Path, *rules: str) -> Path:
    """Have a server read policies with these rules. Return the file that keeps them."""
    file = file_of(folder / "secret")
    CentralPolicies(Directory(*rules), file, None, None).refresh()  # type: ignore[arg-type]
    return file


def test_before_the_server_has_started(tmp_path: Path) -> None:
    (found,) = findings(tmp_path)
    assert found.verdict is Verdict.NOTE and "has not read them yet" in found.text


def test_policies_and_their_age(tmp_path: Path) -> None:
    file = read(tmp_path, "D:(A;;FA;;;BA)", "D:(A;;FA;;;DA)")
    (found,) = findings(tmp_path)
    assert found.verdict is Verdict.OK and found.text == "Policy 0, Policy 1; a controller has said so 0 minutes ago"
    then = time.time() - 7200
    os.utime(file, (then, then))
    (found,) = findings(tmp_path)
    assert found.verdict is Verdict.WARNING and "120 minutes ago" in found.text and found.remedy


def test_names_that_nobody_has_and_rules_that_nobody_understands(tmp_path: Path) -> None:
    read(tmp_path, "D:(A;;FA;;;BA)", "D:(A;;FA;;;nonsense)")
    shown, missing, wrong = findings(tmp_path, ["policy 1", "Others"])
    assert shown.text.startswith("Policy 1; ")
    assert missing.verdict is Verdict.WARNING and missing.text == "the directory has none named Others"
    assert wrong.verdict is Verdict.WARNING and wrong.text.startswith("Policy 1: rule Rule 1: ")


def test_a_damaged_file(tmp_path: Path) -> None:
    read(tmp_path).write_bytes(b"{")
    (found,) = findings(tmp_path)
    assert found.verdict is Verdict.WARNING and "is damaged" in found.text and "remove" in found.remedy
