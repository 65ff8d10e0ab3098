"""Finds the state of a process that its threads share: what belongs to no object of a server.

Found are variables and attributes of classes that hold something that can change, and that some code of the packages
does change: by an item, a method or ``global``. Tables that nobody changes are constants. Caches of functions change by
themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.check_layers.graph import statements

PACKAGES = ("smbdirect", "smb3server", "witness")
CACHES = frozenset({"cache", "lru_cache"})
ALWAYS = frozenset({
    "ContextVar", "Lock", "Queue", "RLock", "SimpleQueue", "ThreadPoolExecutor", "WeakKeyDictionary", "WeakSet",
    "WeakValueDictionary", "count", "create_string_buffer", "local",
})  # fmt: skip
"""Who makes one of these at the level of a module means to change it."""
CHANGES = frozenset({
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert", "intersection_update",
    "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "subtract",
    "symmetric_difference_update", "update",
})  # fmt: skip
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})


class Module(NamedTuple):
    """A module that was read."""

    path: str
    name: str
    tree: ast.Module


def read(root: Path, packages: Iterable[str] = PACKAGES) -> list[Module]:
    """Read all modules of the packages."""
    found = []
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            inside = path.relative_to(root)
            parts = inside.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(str(inside), name, ast.parse(path.read_text())))
    return found


def _last(node: ast.expr) -> str:
    """Return the last name of what is called or decorates: "lru_cache" of ``functools.lru_cache(64)``."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> ast.expr:
    """Return what is changed by an assignment to ``node``: ``a`` of ``a[1]``, ``self.a`` of ``self.a[1][2]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _flat(element)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement or a call changes in place. A variable that is bound anew is not among it."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign() | ast.Delete():
            targets = node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.For():
            targets = [node.target]
        case ast.Call(func=ast.Attribute() as function) if function.attr in CHANGES:
            yield _root(function.value)
    for target in targets:
        for one in _flat(target):
            if isinstance(one, ast.Subscript) or (isinstance(one, ast.Name) and isinstance(node, ast.AugAssign)):
                yield _root(one)


def _with_class(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield every node with the name of the class around it, which is empty where there is none."""
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, owner = waiting.pop()
        yield node, owner
        inside = node.name if isinstance(node, ast.ClassDef) else owner
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that a module or class binds in its body, with their values."""
    for statement in body:
        match statement:
            case ast.Assign():
                for target in statement.targets:
                    for one in _flat(target):
                        if isinstance(one, ast.Name):
                            yield one.id, statement.value
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                yield target.id, value
            case ast.If() | ast.Try():
                yield from _assigned([*statement.body, *statement.orelse])


def _functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def _changes_itself(definition: ast.ClassDef) -> bool:
    """Whether objects of a class change after they were made: a method binds or changes an attribute."""
    if any(_last(base) == "local" for base in definition.bases):
        return True
    for method in _functions(definition.body):
        if method.name in _MAKING or not method.args.args:
            continue
        own = method.args.args[0].arg
        for node in ast.walk(method):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
            for one in [node] if stored else _changed(node):
                if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == own:
                    return True
    return False


class Finder:
    """Knows the modules, and finds what they share."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self._modules = list(modules)
        self._imports = {module.name: self._imported(module) for module in self._modules}
        self._changing = {
            f"{module.name}.{one.name}"
            for module in self._modules
            for one in module.tree.body
            if isinstance(one, ast.ClassDef) and _changes_itself(one)
        }
        self._changed = {name for module in self._modules for name in self._changed_in(module)}

    @staticmethod
    def _imported(module: Module) -> dict[str, str]:
        """Return the full names of what a module and its functions import."""
        return {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in statements(module.tree.body)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    def _changed_in(self, module: Module) -> Iterator[str]:
        """Yield the full names of variables, and of attributes of classes, that a module changes."""
        imported = self._imports[module.name]
        for node, owner in _with_class(module.tree):
            if isinstance(node, ast.Global):
                yield from (f"{module.name}.{name}" for name in node.names)
            for one in _changed(node):
                match one:
                    case ast.Name(id=name):
                        yield imported.get(name, f"{module.name}.{name}")
                    case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if owner:
                        yield f"{module.name}.{owner}.{name}"
                    case ast.Attribute(value=ast.Name(id=holder), attr=name):
                        yield f"{imported.get(holder, f'{module.name}.{holder}')}.{name}"

    def _is_state(self, module: Module, full: str, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call):
            return full in self._changed
        made = _last(value.func)
        # A field of a dataclass: every object gets its own.
        if made == "field":
            return False
        if full in self._changed:
            return True
        return made in ALWAYS or self._imports[module.name].get(made, f"{module.name}.{made}") in self._changing

    def found(self) -> set[str]:
        """Return all shared state, each as ``path::name`` or ``path::Class.name``."""
        return {f"{module.path}::{name}" for module in self._modules for name in self._found_in(module)}

    def _found_in(self, module: Module) -> Iterator[str]:
        for prefix, body in [("", module.tree.body)] + [
            (f"{one.name}.", one.body) for one in module.tree.body if isinstance(one, ast.ClassDef)
        ]:
            for name, value in _assigned(body):
                if self._is_state(module, f"{module.name}.{prefix}{name}", value):
                    yield prefix + name
            for function in _functions(body):
                if any(_last(decorator) in CACHES for decorator in function.decorator_list):
                    yield prefix + function.name


def attributes(module: ast.Module, owner: str) -> set[str]:
    """Return the attributes that a class binds in all its methods, as ``Class.name``."""
    definition = next(one for one in module.body if isinstance(one, ast.ClassDef) and one.name == owner)
    return {
        f"{owner}.{node.attr}"
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
