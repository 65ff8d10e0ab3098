"""The docstring of each package names all its modules, each once, in the order in which to read them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.check_layers.rooms import ROOMS

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())


def _members(folder: Path) -> list[str]:
    """Return the names of the modules and packages in a package."""
    modules = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
    return sorted([*modules, *(path.parent.name for path in folder.glob("*/__init__.py"))])


def _packages() -> list[str]:
    """Return the packages that have something to put in order."""
    found = (
        path.parent for name in ("smbdirect", "smb3server", "witness") for path in ROOT.glob(f"{name}/**/__init__.py")
    )
    return sorted(str(folder.relative_to(ROOT)) for folder in found if len(_members(folder)) > 1)


def _named(docstring: str) -> list[str]:
    """Return what a reading order names, in its paragraph and in a list behind it.

    Names with a dot are those of other packages.
    """
    _, _, order = docstring.partition("Reading order:")
    paragraphs = order.split("\n\n")
    lists = [paragraph for paragraph in paragraphs[1:] if re.match(r"- |\d+\. ", paragraph)]
    return re.findall(r"``(\w+)``", "\n".join([paragraphs[0], *lists]))


def _order_of(package: str) -> list[str]:
    return _named(ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or "")


@pytest.mark.parametrize("package", _packages())
def test_each_module_is_named_once(package: str) -> None:
    assert sorted(_order_of(package)) == _members(ROOT / package)


def test_the_rooms_are_named_in_the_order_of_imports() -> None:
    rooms = dict.fromkeys(room.split(".")[1] for room in ROOMS if room.startswith("smb3server."))
    assert _order_of("smb3server") == [room for room in rooms if room != "__main__"]


@pytest.mark.parametrize(
    ("docstring", "named"),
    [
        ("Say it.\n\nReading order: ``a`` (not ``other.b``) -> ``c``.\n\n``d`` is elsewhere.", ["a", "c"]),
        ("Say it.\n\nReading order:\n\n- ``a``;\n- ``b``.\n\nMore of ``c``.", ["a", "b"]),
        ("Say it of ``a``.", []),
    ],
)
def test_what_an_order_names(docstring: str, named: list[str]) -> None:
    assert _named(docstring) == named
