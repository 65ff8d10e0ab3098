"""What docs/security.md promises names cases and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.attacks.__main__ import MODULES
from tools.attacks.lab import CASES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("| promise |") : PAGE.index("The limits in every case")]


def test_every_case_keeps_a_promise() -> None:
    assert MODULES
    named = {name for name in re.findall(r"`([a-z_]+)`", TABLE) if "." not in name}
    assert named == set(CASES)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[a-z0-9_/]+\.py)`", PAGE))))
def test_tests_that_the_page_names_exist(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/security.md", "docs/hardening.md"])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (file.parent / target).exists(), target
