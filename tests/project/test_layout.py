"""What tests share lies in ``tests/lab``: nobody imports a module of tests or a conftest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.check_layers.graph import imports

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "tests").rglob("*.py"))


def of_tests(source: str, module: str = "tests.a.test_b") -> Iterator[str]:
    """What ``source`` imports from a module that pytest collects, or from a conftest."""
    for _, imported in imports(source, Path("test_b.py"), module):
        package, *names = imported.split(".")
        if package == "tests" and any(name == "conftest" or name.startswith("test_") for name in names):
            yield imported


def test_no_module_of_tests_is_imported() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in MODULES
        if (
            names := list(
                of_tests(path.read_text(encoding="utf-8"), ".".join(path.relative_to(ROOT).with_suffix("").parts))
            )
        )
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "from tests.smb3server.files.test_leases import Recorder",
        "from tests.witness.conftest import running",
        "from tests.witness import conftest",
        "from .test_leases import Recorder",
        "def f():\n    import tests.files.test_leases",
    ],
)
def test_such_imports_are_found(source: str) -> None:
    assert len(list(of_tests(source))) == 1


def test_every_folder_is_a_package() -> None:
    """Modules of the same name in two folders can only both be imported from packages."""
    assert [folder for folder in {path.parent for path in MODULES} if not (folder / "__init__.py").exists()] == []
