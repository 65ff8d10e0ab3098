"""Imports point downward only: ``python -m tools.check_layers [ROOT]`` lists every import that breaks a rule.

Each rule says which modules it binds and what they must not import. Names are dotted; a name covers everything below
it. Imports inside functions count as well; those under ``if TYPE_CHECKING`` do not, since nothing runs them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Rule(NamedTuple):
    """Modules under ``binds`` (but not under ``exempt``) must not import anything under ``forbids``."""

    binds: tuple[str, ...]
    forbids: tuple[str, ...]
    reason: str
    exempt: tuple[str, ...] = ()


class Violation(NamedTuple):
    path: Path
    line: int
    importer: str
    imported: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}: {self.reason}"


PACKAGES = ("smbdirect", "smb3server", "witness", "tools")

CORE = tuple(
    f"smbdirect.{name}"
    for name in (
        "errors",
        "constants",
        "codec",
        "messages",
        "events",
        "credits",
        "reassembly",
        "settings",
        "connection",
    )
)
IWARP_CODECS = tuple(f"smbdirect.providers.iwarp.{name}" for name in ("mpa", "ddp", "rdmap"))
ROCE_PROTOCOL = tuple(
    f"smbdirect.providers.roce.{name}"
    for name in ("headers", "icrc", "retry", "requester", "responder", "queue_pair", "cm", "cm_messages")
)
OUTSIDE_WORLD = ("asyncio", "socket", "select", "selectors", "threading", "time", "random", "secrets", "os", "uuid")

RULES = (
    Rule(("smbdirect",), ("smb3server", "witness", "tools"), "the transport knows nothing of what it carries"),
    Rule(("smb3server", "witness"), ("tools",), "tools are not installed"),
    Rule(
        ("witness",),
        ("smb3server.commands", "smb3server.dispatch.dispatcher", "smb3server.server.server"),
        "witness stands alone",
    ),
    Rule(CORE, OUTSIDE_WORLD, "the core has no I/O, clock or randomness"),
    Rule(
        CORE,
        ("smbdirect.providers", "smbdirect.transport.smb_direct", "smbdirect.transport.listen"),
        "the core knows no provider",
    ),
    Rule(IWARP_CODECS, OUTSIDE_WORLD, "protocol layers of a provider are sans-I/O"),
    Rule(ROCE_PROTOCOL, OUTSIDE_WORLD, "protocol layers of a provider are sans-I/O"),
    Rule(
        ("smbdirect.providers",),
        ("smbdirect.core.connection", "smbdirect.transport.smb_direct", "smbdirect.transport.listen"),
        "providers know no SMB Direct",
    ),
    Rule(("smb3server.wire",), OUTSIDE_WORLD, "codecs are pure functions"),
    Rule(
        ("smb3server.wire",),
        tuple(f"smb3server.{name}" for name in ("commands", "dispatcher", "backends", "server", "session", "open")),
        "codecs know no server",
    ),
    Rule(
        ("smb3server.backends",),
        (
            *(f"smb3server.wire.{name}" for name in ("header", "status", "fields", "create", "query_info", "set_info")),
            "smb3server.commands",
            "smb3server.dispatch.dispatcher",
        ),
        "no SMB messages",
    ),
    Rule(("smb3server.backends",), ("smbdirect.providers", "smbdirect.core.connection"), "backends know no transport"),
    Rule(
        ("smb3server.access",),
        tuple(
            f"smb3server.{name}" for name in ("commands", "dispatcher", "server", "opening", "open", "files", "tree")
        ),
        "decisions are below what asks for them",
    ),
    Rule(
        ("smb3server.files.caching", "smb3server.files.locks"),
        (*OUTSIDE_WORLD, "smb3server.process.turns", "smb3server.dispatch.waiting"),
        "caching rights and locks are state machines: who waits is called by those who own the loop",
    ),
    Rule(("smb3server.commands",), ("smbdirect.providers", "smbdirect.core.connection"), "commands know no provider"),
    Rule(
        ("smb3server.commands",), ("smb3server.server.server", "smb3server.cli.main"), "commands are below the server"
    ),
    Rule(
        ("smbdirect", "smb3server", "witness"),
        ("scapy",),
        "scapy is GPL-2.0: tests and tools only, never the installed runtime",
    ),
    Rule(
        ("smbdirect", "smb3server", "witness"),
        ("pytest", "hypothesis", "smbprotocol"),
        "development dependencies are not there at run time",
    ),
)


def covers(name: str, module: str) -> bool:
    """Whether ``module`` is ``name`` or below it."""
    return module == name or module.startswith(name + ".")


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_type_checking(node: ast.If) -> bool:
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that can run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_type_checking(node):
            for branch in node.orelse:
                yield branch
                yield from _nodes(branch)
            continue
        yield node
        yield from _nodes(node)


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported. ``from a import b`` gives ``a.b``, which covers both readings:
    ``b`` may be a module or a name, and a rule about ``a`` covers ``a.b``."""
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def check_source(source: str, path: Path, module: str, is_package: bool, rules: Iterable[Rule]) -> list[Violation]:
    """Violations in one module's text. Raises ``SyntaxError`` for text that is not Python."""
    bound = [
        rule
        for rule in rules
        if any(covers(name, module) for name in rule.binds) and not any(covers(name, module) for name in rule.exempt)
    ]
    if not bound:
        return []
    found = []
    for line, imported in imports(ast.parse(source, str(path)), module, is_package):
        found += [
            Violation(path, line, module, imported, rule.reason)
            for rule in bound
            if any(covers(name, imported) for name in rule.forbids)
        ]
    return found


def check(root: Path, rules: Iterable[Rule] = RULES) -> list[Violation]:
    """Violations in all packages under ``root``, in order of path and line."""
    rules = tuple(rules)
    found: list[Violation] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            found += check_source(source, path, module_name(path, root), path.name == "__init__.py", rules)
    return found


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    violations = check(root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
