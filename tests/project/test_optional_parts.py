"""The code that is checked and tested everywhere, and the packages that are not installed everywhere."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_OURS = {"smb3server", "smbdirect", "witness", "tools"}
_TYPES_ALONE = {"_typeshed"}
"""Known to mypy, and to nothing else."""


def _imported() -> dict[str, Path]:
    """Return each module of others that the product or a tool imports by name, with a file that does."""
    found: dict[str, Path] = {}
    for room in sorted(_OURS):
        for path in (_ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    names = [node.module]
                else:
                    continue
                found.update((name.split(".")[0], path) for name in names)
    known = _OURS | _TYPES_ALONE | sys.stdlib_module_names
    return {name: path for name, path in found.items() if name not in known}


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
    providers = importlib.metadata.packages_distributions()
    missing = {
        name: str(path.relative_to(_ROOT))
        for name, path in _imported().items()
        if f"{name}.*" not in without_types["module"]
        and not any(_name(provider) in installed for provider in providers.get(name, []))
    }
    assert not missing
