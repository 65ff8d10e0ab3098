"""Find imports that break the order of rooms or a rule, or form a circle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.check_layers.graph import Import, Module, circles, covers, read_modules
from tools.check_layers.rooms import PACKAGES, ROOMS, RULES, Rule


def room_of(module: str, rooms: Sequence[str] = ROOMS) -> int | None:
    """Return the position of a module's room in the order; None if it has none."""
    found = [number for number, room in enumerate(rooms) if covers(room, module)]
    return max(found, key=lambda number: len(rooms[number]), default=None)


def check(
    root: Path,
    rooms: Sequence[str] = ROOMS,
    rules: Iterable[Rule] = RULES,
) -> list[str]:
    """Return the errors below ``root``, one line each; empty if there are none."""
    return check_modules(read_modules(root, PACKAGES), rooms, tuple(rules))


def check_modules(
    modules: Mapping[str, Module], rooms: Sequence[str] = ROOMS, rules: Sequence[Rule] = RULES
) -> list[str]:
    """Return the errors of modules that were read, one line each."""
    found = [text for module in modules.values() for text in _check_module(module, rooms, rules)]
    found += _check_names(modules, rooms, rules)
    graph = {
        name: sorted({entry.module for entry in module.imports if entry.module}) for name, module in modules.items()
    }
    found += [f"circle: {' -> '.join(circle)}" for circle in circles(graph)]
    return found


def _check_module(module: Module, rooms: Sequence[str], rules: Sequence[Rule]) -> Iterator[str]:
    place = room_of(module.name, rooms)
    if place is None:
        if module.imports:
            yield f"{module.path}:1: {module.name} is in no room of tools/check_layers/rooms.py"
        return
    bound = [rule for rule in rules if any(covers(name, module.name) for name in rule.binds)]
    for entry in module.imports:
        where = f"{module.path}:{entry.line}: {module.name} imports {entry.name}"
        yield from (f"{where}: {rule.reason}" for rule in bound if _is_forbidden(entry, rule))
        if entry.module.rpartition(".")[2].startswith("test_"):
            yield f"{where}: test modules share what is in tests.lab"
        there = room_of(entry.module, rooms) if entry.module else None
        if there is not None and there > place:
            yield f"{where}: {rooms[there]} is above {rooms[place]}"


def _is_forbidden(entry: Import, rule: Rule) -> bool:
    return any(covers(name, entry.name) for name in rule.forbids)


def _check_names(modules: Iterable[str], rooms: Sequence[str], rules: Iterable[Rule]) -> Iterator[str]:
    """Find rooms, and names in rules, that do not exist: they would bind and forbid nothing."""
    modules = list(modules)
    named = [*rooms, *(name for rule in rules for name in (*rule.binds, *rule.forbids))]
    for name in dict.fromkeys(named):
        if name.partition(".")[0] in PACKAGES and not any(covers(name, module) for module in modules):
            yield f"rooms: there is no {name}"
