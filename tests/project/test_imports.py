"""What the code imports: its own modules below it, and packages of others that are not installed everywhere."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.lab import source
from tools.check_layers.check import check_modules

_ROOT = Path(__file__).parents[2]
_OURS = {"smb3server", "smbdirect", "witness", "tools"}
_TYPES_ALONE = {"_typeshed"}
"""Known to mypy, and to nothing else."""


def _imported(packages: Iterable[str]) -> dict[str, Path]:
    """Return each module of others that these packages import by name, with a file that does."""
    found = {entry.name.partition(".")[0]: module.path for module in source.of(packages) for entry in module.imports}
    known = _OURS | _TYPES_ALONE | sys.stdlib_module_names
    return {name: path for name, path in found.items() if name not in known}


@functools.cache
def _providers() -> Mapping[str, list[str]]:
    """Return the packages that are installed, by what is imported of them."""
    return importlib.metadata.packages_distributions()


def _name(requirement: str) -> str:
    """Return the name of the package in a requirement, in its normal form."""
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def _installed(requirements: list[str]) -> set[str]:
    """Return the packages that come with ``requirements``, without extras."""
    found: set[str] = set()
    while requirements:
        name = _name(requirements.pop())
        if name not in found:
            found.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                requirements += [text for text in importlib.metadata.requires(name) or () if "extra ==" not in text]
    return found


def test_lint_needs_no_optional_package() -> None:
    """``make lint`` comes before the packages that only tests need: mypy knows what else may be missing."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    (without_types,) = project["tool"]["mypy"]["overrides"]
    installed = _installed([*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]])
    providers = _providers()
    missing = {
        name: str(path.relative_to(_ROOT))
        for name, path in _imported(_OURS).items()
        if f"{name}.*" not in without_types["module"]
        and not any(_name(provider) in installed for provider in providers.get(name, []))
    }
    assert not missing


def test_every_required_package_is_imported() -> None:
    """No package is installed for nothing."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    modules = {name: top for top, names in _providers().items() for name in names}
    imported = _imported(source.PRODUCT)
    for requirement in project["dependencies"]:
        name = re.split(r"[^A-Za-z0-9_-]", requirement)[0]
        assert modules.get(name, name) in imported, f"{name} is required and never imported"


def test_no_import_points_up() -> None:
    """Nor is there a circle, or a room without modules: what ``make lint`` checks."""
    assert check_modules(source.modules()) == []
