"""What documents refer to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.kernel_lab.cases import CASES

ROOT = Path(__file__).parent.parent.parent
CLIENTS = (ROOT / "docs" / "clients.md").read_text()


@pytest.mark.parametrize("reference", sorted(set(re.findall(r"`(tests/[^`]*)`", CLIENTS))))
def test_tests_named_by_the_table_of_clients(reference: str) -> None:
    file, _, name = reference.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_kernel_lab_cases_named_by_the_table_of_clients() -> None:
    named = {
        name
        for row in re.findall(r"`make kernel-test`, cases (.*) \|", CLIENTS)
        for name in re.findall(r"`(.+?)`", row)
    }
    assert named and named <= {case.name for case in CASES}
