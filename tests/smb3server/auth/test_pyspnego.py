"""What this project uses of pyspnego's private names: a release that changes them fails here, not at a logon."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import smb3server.auth.pyspnego

ROOT = Path(smb3server.auth.pyspnego.__file__).parents[2]


def private_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "spnego":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "spnego")


def test_one_module_knows_private_names() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("smb3server", "smbdirect", "witness")
        for path in (ROOT / package).rglob("*.py")
        if "spnego" in (text := path.read_text())
        for name in private_names(ast.parse(text))
        if "._" in name
    }
    assert found == {"smb3server/auth/pyspnego.py"}


def test_the_version_is_one_that_was_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["kerberos"]]
    bounds = {re.sub(r"\[.*\]", "", entry) for entry in wanted if entry.startswith("pyspnego")}
    assert bounds == {"pyspnego>=0.11.2,<0.13"}
    version = importlib.metadata.version("pyspnego").split(".")
    assert (0, 11, 2) <= tuple(map(int, version[:3])) < (0, 13)


def test_the_kerberos_context_takes_a_credential() -> None:
    gss = pytest.importorskip("spnego._gss")
    pytest.importorskip("gssapi")
    assert 'kwargs.get("_gssapi_credential"' in inspect.getsource(gss.GSSAPIProxy.__init__)
    assert {"_context", "_is_wrapped"} <= set(re.findall(r"self\.(\w+)", inspect.getsource(gss.GSSAPIProxy)))
