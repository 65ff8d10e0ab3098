"""The graph of imports: modules, their imports, and circles among them."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """An import. ``name`` is the imported name, ``module`` our module that it is or comes from; empty if it is not
    ours.
    """

    line: int
    name: str
    module: str = ""


class Module(NamedTuple):
    """A module and its imports."""

    path: Path
    name: str
    imports: tuple[Import, ...]


def covers(name: str, module: str) -> bool:
    """Return whether ``module`` is ``name`` or below it."""
    return module == name or module.startswith(name + ".")


def imports(source: str, path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything that a module's text imports; ``from a import b`` gives ``a.b``.

    ``b`` may be a module or a name in one; a rule about ``a`` covers both. Raises ``SyntaxError``.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in statements(ast.parse(source, str(path)).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield statements, with those inside them. Expressions are passed over: nothing is imported there."""
    waiting: deque[ast.AST] = deque(body)
    while waiting:
        node = waiting.popleft()
        yield node
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            if isinstance(inside := getattr(node, part, None), list):
                waiting += inside


def read_modules(root: Path, packages: Iterable[str]) -> dict[str, Module]:
    """Read all modules of ``packages`` below ``root``, by name and in the order of their paths."""
    found: dict[str, tuple[Path, list[tuple[int, str]]]] = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path, list(imports(path.read_text(encoding="utf-8"), path, name))
    return {
        name: Module(path, name, tuple(Import(line, imported, _module_of(imported, found)) for line, imported in lines))
        for name, (path, lines) in found.items()
    }


def _module_of(imported: str, known: Mapping[str, object]) -> str:
    if imported in known:
        return imported
    parent = imported.rpartition(".")[0]
    return parent if parent in known else ""


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return a shortest circle of each knot of ``graph``; its first module is repeated at its end."""
    found = []
    for knot in _knots({node: tuple(following) for node, following in graph.items()}):
        ways = (_way_back(graph, node, knot) for node in sorted(knot))
        found.append(min(ways, key=len))
    return sorted(found)


def _way_back(graph: Mapping[str, Iterable[str]], start: str, knot: set[str]) -> list[str]:
    """Find the shortest way from ``start`` to itself. There must be one in the knot."""
    before: dict[str, str] = {}
    waiting = deque([start])
    while True:
        node = waiting.popleft()
        for following in sorted(graph[node]):
            if following == start:
                way = [start, node]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if following in knot and following not in before:
                before[following] = node
                waiting.append(following)


def _knots(graph: Mapping[str, tuple[str, ...]]) -> list[set[str]]:
    """Return the sets of nodes that reach each other: strongly connected components that contain a circle (Tarjan)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[set[str]] = []
    for root in graph:
        if root in numbers:
            continue
        numbers[root] = lowest[root] = len(numbers)
        path.append(root)
        on_path.add(root)
        work = [(root, iter(graph[root]))]
        while work:
            node, rest = work[-1]
            for following in rest:
                if following not in numbers:
                    numbers[following] = lowest[following] = len(numbers)
                    path.append(following)
                    on_path.add(following)
                    work.append((following, iter(graph.get(following, ()))))
                    break
                if following in on_path:
                    lowest[node] = min(lowest[node], numbers[following])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == numbers[node]:
                    knot = set(path[path.index(node) :])
                    del path[len(path) - len(knot) :]
                    on_path -= knot
                    if len(knot) > 1 or node in graph[node]:
                        found.append(knot)
    return found
