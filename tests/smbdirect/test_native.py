"""Whether modules in C are used."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from smbdirect import native

ROOT = Path(__file__).parents[2]


def test_every_source_is_known() -> None:
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("smbdirect", "smb3server", "witness")
        for path in (ROOT / package).rglob("_*.c")
    }
    assert sources == set(native.MODULES)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that stands for one in C, with its source beside it."""
    monkeypatch.delenv(native.SWITCH, raising=False)
    found = ModuleType("some._native")
    found.__file__ = str(tmp_path / "_native.abi3.so")
    (tmp_path / "_native.c").write_bytes(b"int x;")
    found.__dict__["SOURCE"] = native.digest(b"int x;")
    monkeypatch.setitem(sys.modules, "some", ModuleType("some"))
    monkeypatch.setitem(sys.modules, "some._native", found)
    return found


def test_a_module_is_used(module: ModuleType) -> None:
    assert native.problem(module.__name__) is None
    assert native.available(module.__name__)


def test_a_module_without_its_source_is_used(module: ModuleType, tmp_path: Path) -> None:
    """So it is in an installed wheel."""
    (tmp_path / "_native.c").unlink()
    assert native.available(module.__name__)


def test_a_module_of_another_source_is_not_used(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "_native.c").write_bytes(b"int y;")
    assert native.problem(module.__name__) == "built from another _native.c"


def test_a_module_is_switched_off(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.problem(module.__name__) == "SMB3SERVER_NATIVE is 0"
    assert not native.available(module.__name__)


def test_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.SWITCH, raising=False)
    assert native.problem("smbdirect._nothing") == "not built"


def test_a_module_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was built for another machine, for example."""
    monkeypatch.delenv(native.SWITCH, raising=False)
    (tmp_path / "broken_native.abi3.so").write_bytes(b"nothing that could be loaded")
    monkeypatch.syspath_prepend(tmp_path)
    problem = native.problem("broken_native")
    assert problem is not None
    assert "broken_native" in problem


def test_a_module_of_another_build_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A free-threaded Python finds one of the stable ABI."""
    monkeypatch.delenv(native.SWITCH, raising=False)
    (tmp_path / "other_build.py").write_text("raise SystemError('init function returned uninitialized object')")
    monkeypatch.syspath_prepend(tmp_path)
    assert native.problem("other_build") == "built for another Python: init function returned uninitialized object"
