"""What tests share lies in ``tests/lab``: nobody imports a module of tests or a conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import source
from tools.check_layers.graph import imports

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "tests").rglob("*.py"))


def is_of_tests(name: str) -> bool:
    """Whether a dotted name is, or lies in, a module that pytest collects or a conftest."""
    package, *names = name.split(".")
    return package == "tests" and any(part == "conftest" or part.startswith("test_") for part in names)


def test_no_module_of_tests_is_imported() -> None:
    found = [
        f"{module.path.relative_to(ROOT)}:{line}: {name}"
        for module in source.of(("tests", "tools"))
        for line, name, _ in module.imports
        if is_of_tests(name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "from tests.smb3server.files.test_leases import Recorder",
        "from tests.witness.conftest import running",
        "from tests.witness import conftest",
        "from .test_leases import Recorder",
        "def f():\n    import tests.files.test_leases",
    ],
)
def test_such_imports_are_found(text: str) -> None:
    assert [is_of_tests(name) for _, name in imports(text, Path("test_b.py"), "tests.a.test_b")] == [True]


def test_every_folder_is_a_package() -> None:
    """Modules of the same name in two folders can only both be imported from packages."""
    assert [folder for folder in {path.parent for path in MODULES} if not (folder / "__init__.py").exists()] == []
