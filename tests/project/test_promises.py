"""What docs/security.md promises names cases and tests that exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from smb3server import wire
from tools.attacks.__main__ import MODULES
from tools.attacks.bounds import NUMBERS
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


ANSWERS = {
    "ErrorResponse.error_context_count",
    "ErrorResponse.byte_count",
    "StandardInformation.number_of_links",
    "AllFixed.number_of_links",
    "CopyChunkResponse.chunks_written",
    "RegionHeader.total_count",
    "RegionHeader.entry_count",
    "IoctlResponse.input_count",
    "IoctlResponse.output_count",
    "NegotiateResponse.context_count",
    "WriteResponse.byte_count",
}
"""Fields of what the server sends."""
BYTES = {
    "DuplicateExtents.byte_count",
    "DuplicateExtentsEx.byte_count",
    "IoctlRequest.input_count",
    "IoctlRequest.output_count",
    "ReadRequest.minimum_count",
}
"""Fields that count bytes: of the message, or of a file, which the kernel clones without touching them."""
ONE = {"RdmaTransform.transform_count"}
"""Fields of which one value is allowed."""


def _counts() -> set[str]:
    """Return the fields of all messages that count something, as ``Message.field``."""
    found = set()
    for module in pkgutil.iter_modules(wire.__path__):
        for name, value in vars(importlib.import_module(f"smb3server.wire.{module.name}")).items():
            fields = getattr(value, "_fields", ()) if isinstance(value, type) else ()
            found |= {f"{name}.{field}" for field in fields if re.search(r"count|num_|number_of|chunks", field)}
    return found


def test_every_number_that_a_client_chooses_has_a_bound_and_a_case() -> None:
    """The case sends as many, and ``tools.attacks`` measures the server's processor time at the bound."""
    carried = {field for number in NUMBERS for field in number.fields}
    assert _counts() - ANSWERS - BYTES - ONE == carried
    assert _counts() >= ANSWERS | BYTES | ONE
    assert {number.case for number in NUMBERS} <= set(CASES)


@pytest.mark.parametrize("path", sorted({p for n in NUMBERS for p in re.findall(r"[a-z_.]+\.[_A-Z]{3,}", n.bound)}))
def test_the_bounds_exist(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(f"smb3server.{module}"), name) > 0
