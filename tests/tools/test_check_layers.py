"""The layer check finds what it should, and the project passes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_layers.__main__ import main
from tools.check_layers.check import check, room_of
from tools.check_layers.graph import circles, covers, imports
from tools.check_layers.rooms import PACKAGES, RULES, Rule
from tools.check_layers.rooms import ROOMS as ROOMS_OF_ALL

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("smbdirect.codec", "smbdirect.core", "smb3server.wire", "smb3server.state", "smb3server.server")
PURE = Rule(("smb3server.wire",), ("time", "socket"), "codecs are pure functions")


def wrong(tmp_path: Path, *files: tuple[str, str]) -> list[str]:
    """What is wrong with a tree of these modules, without the path; one module for each of ``ROOMS`` is there."""
    for name, source in (*((f"{room}.something", "") for room in ROOMS), *files):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return [line.partition(": ")[2] for line in check(tmp_path, ROOMS, (PURE,))]


@pytest.mark.parametrize(
    "source",
    [
        "import smb3server.server.something",
        "from smb3server.server import something",
        "from smb3server.server.something import Server",
        "from ..server.something import Server",
        "def f():\n    from smb3server.server.something import Server",
        "if TYPE_CHECKING:\n    from smb3server.server.something import Server",
        "try:\n    from smb3server.server.something import Server\nexcept ImportError:\n    pass",
    ],
)
def test_every_import_that_points_up_is_found(tmp_path: Path, source: str) -> None:
    (line,) = wrong(tmp_path, ("smb3server.state.session", source))
    assert line.startswith("smb3server.state.session imports smb3server.server.something")
    assert line.endswith(": smb3server.server is above smb3server.state")


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio, time",
        "from smb3server.wire import something",
        "from smb3server.state.something import Session",
        "from .something import Session",
        "from smbdirect.codec.something import Codec",
    ],
)
def test_imports_that_point_down_pass(tmp_path: Path, source: str) -> None:
    assert wrong(tmp_path, ("smb3server.state.session", source)) == []


def test_a_rule_binds_what_is_lower_too(tmp_path: Path) -> None:
    said = wrong(tmp_path, ("smb3server.wire.header", "def f():\n    import socket\nfrom time import sleep"))
    assert said == [
        "smb3server.wire.header imports time.sleep: codecs are pure functions",
        "smb3server.wire.header imports socket: codecs are pure functions",
    ]
    assert wrong(tmp_path, ("smb3server.wire.header", "import timeit_like")) == []


def test_the_objects_of_the_protocol_touch_no_file_of_the_host(tmp_path: Path) -> None:
    wrong(tmp_path, ("smb3server.state.opens", "from os import unlink"))
    said = check(tmp_path, ROOMS, [rule for rule in RULES if rule.binds == ("smb3server.state",)])
    assert any("smb3server.state.opens imports os.unlink: " in line for line in said)


def test_no_module_imports_a_test_module(tmp_path: Path) -> None:
    said = wrong(tmp_path, ("smb3server.wire.test_a", ""), ("smb3server.state.b", "from ..wire.test_a import harness"))
    assert said == [
        "smb3server.state.b imports smb3server.wire.test_a.harness: test modules share what is in tests.lab"
    ]


def test_a_module_without_a_room_is_found(tmp_path: Path) -> None:
    assert wrong(tmp_path, ("smb3server.new", "import os")) == [
        "smb3server.new is in no room of tools/check_layers/rooms.py"
    ]
    assert wrong(tmp_path, ("smb3server.new", ""), ("smb3server.__init__", '"""Read it."""')) == []


def test_a_circle_is_printed_wherever_it_is(tmp_path: Path) -> None:
    said = wrong(
        tmp_path,
        ("smb3server.state.a", "from smb3server.state.b import B"),
        ("smb3server.state.b", "def f():\n    from smb3server.state import c"),
        ("smb3server.state.c", "if TYPE_CHECKING:\n    from smb3server.state.a import A"),
    )
    assert said == ["smb3server.state.a -> smb3server.state.b -> smb3server.state.c -> smb3server.state.a"]


def test_rooms_and_rules_that_name_nothing_are_found(tmp_path: Path) -> None:
    for room in ROOMS[1:]:
        path = tmp_path / room.replace(".", "/") / "something.py"
        path.parent.mkdir(parents=True)
        path.touch()
    rule = Rule(("smb3server.wire",), ("smb3server.gone", "time"), "")
    assert check(tmp_path, ROOMS, (rule,)) == [
        "rooms: there is no smbdirect.codec",
        "rooms: there is no smb3server.gone",
    ]


def test_the_longer_name_says_where_a_module_is() -> None:
    assert room_of("tests.lab.nodes", ("tests.lab", "tests")) == 0
    assert room_of("tests.laboratory", ("tests.lab", "tests")) == 1
    assert room_of("smb3server.cli.main") == room_of("smb3server.cli")
    assert room_of("smb3server") is None


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("smbdirect.core.connection", "asyncio"),
        ("smbdirect.core.credits", "time"),
        ("smbdirect.codec", "random"),
        ("smbdirect.providers.iwarp.mpa", "socket"),
        ("smbdirect.providers.roce.requester", "os"),
        ("smbdirect.providers.base", "smbdirect.core.connection"),
        ("smb3server.wire.create", "threading"),
        ("smb3server.backends.local.backend", "smb3server.wire.header"),
        ("smb3server.backends.local.backend", "smbdirect.providers.base"),
        ("smb3server.commands.read", "smbdirect.providers.base"),
        ("smb3server.files.caching", "asyncio"),
        ("smb3server.config.reader", "smb3server.persistence.store"),
        ("smb3server.config.reader", "witness.setup"),
        ("smb3server.lab.pcap.capture", "scapy.all"),
        ("witness.service", "pytest"),
    ],
)
def test_the_projects_rules_forbid(module: str, imported: str) -> None:
    def covered(names: tuple[str, ...], module: str) -> bool:
        return any(f"{module}.".startswith(f"{name}.") for name in names)

    assert any(covered(rule.binds, module) and covered(rule.forbids, imported) for rule in RULES)


def test_each_of_the_projects_rules_is_broken_once(tmp_path: Path) -> None:
    """In a tree of empty modules, every bound name imports everything that its rules forbid."""
    for module in (module for package in PACKAGES for module in (ROOT / package).rglob("*.py")):
        path = tmp_path / module.relative_to(ROOT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert check(tmp_path) == []

    broken: dict[Path, list[str]] = {}
    expected: set[str] = set()
    for rule in RULES:
        for bound in rule.binds:
            room = bound if room_of(bound) is not None else next(room for room in ROOMS_OF_ALL if covers(bound, room))
            path, name = tmp_path / room.replace(".", "/"), room
            path, name = (path / "broken.py", f"{room}.broken") if path.is_dir() else (path.with_suffix(".py"), room)
            for forbidden in rule.forbids:
                broken.setdefault(path, []).append(f"import {forbidden}")
                expected.add(f"{name} imports {forbidden}: {rule.reason}")
    for path, lines in broken.items():
        path.write_text("\n".join(lines))
    assert sorted(expected - {line.partition(": ")[2] for line in check(tmp_path)}) == []


def test_relative_imports_are_resolved_against_the_package(tmp_path: Path) -> None:
    source = "from . import a\nfrom ..wire import header\nfrom .b import c"
    assert [name for _, name in imports(source, tmp_path / "__init__.py", "smb3server.backends")] == [
        "smb3server.backends.a",
        "smb3server.wire.header",
        "smb3server.backends.b.c",
    ]
    _, first = next(imports(source, tmp_path / "x.py", "smb3server.backends.x"))
    assert first == "smb3server.backends.a"


def test_every_knot_gives_its_shortest_circle() -> None:
    graph = {"a": ["b"], "b": ["c", "a"], "c": ["a"], "d": ["d"], "e": ["a", "f"], "f": [], "g": ["h"], "h": ["g"]}
    assert circles(graph) == [["a", "b", "a"], ["d", "d"], ["g", "h", "g"]]


def test_command_reports_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "smbdirect").mkdir()
    (tmp_path / "smbdirect" / "codec.py").write_text("import time\n")
    assert main([str(tmp_path)]) == 1
    assert "smbdirect.codec imports time: the core has no I/O, clock or randomness" in capsys.readouterr().out


def test_the_whole_tree_is_read() -> None:
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert there == set(PACKAGES)
