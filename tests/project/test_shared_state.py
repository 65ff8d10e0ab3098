"""docs/threads.md names all state that threads share, with what protects it."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.lab.shared_state import Finder, Module, attributes, read
from tests.lab.source import nothing_collected

ROOT = Path(__file__).parents[2]
OF_A_SERVER = {"ServerState": "smb3server/state/server_state.py", "Server": "smb3server/server/server.py"}


def declared() -> list[str]:
    """Return what the first column of the page's tables names. No other column may be empty."""
    found = []
    for line in (ROOT / "docs" / "threads.md").read_text().splitlines():
        if line.startswith("| `"):
            first, *others = line.strip("|").split(" | ")
            assert all(other.strip() for other in others), first
            found += re.findall(r"`([^`]+)`", first)
    return found


def modules_in_c() -> dict[str, str]:
    """Return the text of each module in C."""
    packages = (ROOT / package for package in ("smbdirect", "smb3server", "witness"))
    sources = [source for package in packages for source in sorted(package.rglob("_*.c"))]
    return {str(source.relative_to(ROOT)): source.read_text() for source in sources}


def variables_in_c(text: str) -> list[str]:
    """Return the variables of a module in C that may change after it was loaded."""
    constant = r"const |PyMethodDef |PyModuleDef_Slot |struct PyModuleDef |PyType_Slot |PyType_Spec "
    return re.findall(rf"^static (?!{constant})[\w *]*?(\w+)(?:\[[^\]]*\])* *(?:=.*)?;$", text, re.MULTILINE)


def test_what_a_process_shares_has_an_owner() -> None:
    with nothing_collected():
        found = Finder(read(ROOT)).found()
    found |= {f"{path}::{name}" for path, text in modules_in_c().items() for name in variables_in_c(text)}
    named = {name for name in declared() if "::" in name}
    assert found - named == set(), "add it to docs/threads.md, with what protects it from other threads"
    assert named - found == set(), "docs/threads.md names what is not there"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("static uint32_t table[256];", ["table"]),
        ("static PyObject *cache = NULL;", ["cache"]),
        ("static const uint8_t table[2] = {1, 2};", []),
        ("static int called(void);\nint local;", []),
    ],
)
def test_variables_in_c_are_found(text: str, names: list[str]) -> None:
    assert variables_in_c(text) == names


def test_no_module_in_c_switches_the_lock_on() -> None:
    """A CPython without the interpreter's lock switches it on for a module that does not say it can do without."""
    sources = modules_in_c()
    assert len(sources) > 3
    assert [path for path, text in sources.items() if "{Py_mod_gil, Py_MOD_GIL_NOT_USED}" not in text] == []


def test_what_a_server_has_has_an_owner() -> None:
    found = {
        name for owner, path in OF_A_SERVER.items() for name in attributes(ast.parse((ROOT / path).read_text()), owner)
    }
    named = {name for name in declared() if "::" not in name}
    assert found - named == set(), "add it to docs/threads.md, with who touches it"
    assert named - found == set(), "docs/threads.md names what is not there"


def test_nothing_is_named_twice() -> None:
    names = declared()
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("A = {}\ndef f(): A[1] = 2", ["A"]),
        ("A: dict[int, int] = {}\ndef f(): A.setdefault(1, 2)", ["A"]),
        ("A = []\ndef f():\n    for A[0] in range(3): pass", ["A"]),
        ("A = [[]]\ndef f(): A[0].append(1)", ["A"]),
        ("A = {}\ndef f(): del A[1]", ["A"]),
        ("A = set()\ndef f():\n    global A\n    A = {1}", ["A"]),
        ("A = 0\ndef f():\n    global A\n    A += 1", ["A"]),
        ("if True:\n    A = {}\nA.update(b=1)", ["A"]),
        ("import weakref\nA = weakref.WeakSet()", ["A"]),
        ("import itertools\nA = itertools.count()", ["A"]),
        ("from contextvars import ContextVar\nA: ContextVar[int] = ContextVar('A')", ["A"]),
        ("import functools\n@functools.lru_cache(8)\ndef f(): pass", ["f"]),
        ("class C:\n    A = {}\n    def f(self): self.A[1] = 2", ["C.A"]),
        ("class C:\n    A = []\ndef f(): C.A.append(1)", ["C.A"]),
        ("class C:\n    def f(self): self.a = 1\nA = C()", ["A"]),
        ("class C:\n    def f(self): self.a.add(1)\nA = C()", ["A"]),
        ("import threading\nclass C(threading.local): pass\nA = C()", ["A"]),
        ("class C:\n    def __init__(self): self.a = 1\nA = C()", []),
        ("A = {1: 2}\ndef f(): return A[1]", []),
        ("A = {1: 2}\ndef f(): b = dict(A); b[1] = 3", []),
        ("from dataclasses import field\nclass C:\n    a: list = field()\n    def f(self): self.a.append(1)", []),
    ],
)
def test_state_is_found(source: str, names: list[str]) -> None:
    module = Module("some.py", "some", ast.parse(textwrap.dedent(source)))
    assert Finder([module]).found() == {f"some.py::{name}" for name in names}


def test_state_that_another_module_changes_is_found() -> None:
    modules = [
        Module("a.py", "pack.a", ast.parse("A = {}\nclass C:\n    def f(self): self.x = 1")),
        Module("b.py", "pack.b", ast.parse("from pack.a import A, C\nA.clear()\nB = C()")),
        Module("c.py", "pack.c", ast.parse("from pack import a\na.A[1] = 2")),
    ]
    assert Finder(modules).found() == {"a.py::A", "b.py::B"}
