"""What a mirror must make of two trees, said once more and simply; and trees on disks, made and read."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from smb3server.backends import names as disk_names
from smb3server.client import names

Map = Callable[[str], str]


@dataclass(frozen=True)
class Node:
    """An entry. Files have unlike contents, so that each can be found again wherever it is."""

    kind: str
    """file, folder, link or fifo."""
    text: bytes = b""
    time: int = 0
    """Nanoseconds; of files and folders."""
    mode: int = 0o644
    to: str = ""
    """What a link leads to: an entry of its folder."""
    below: dict[str, Node] = field(default_factory=dict)

    def texts(self) -> set[bytes]:
        """The contents of all files."""
        return {self.text} if self.kind == "file" else {text for one in self.below.values() for text in one.texts()}


@dataclass(frozen=True)
class Rules:
    """The options of a mirror, and how its target compares names."""

    delete: bool = False
    checksum: bool = False
    follow: bool = False
    exclude: tuple[str, ...] = ()
    key: Map = str

    def excludes(self, path: str, node: Node) -> bool:
        """Whether an entry is left out."""
        name = path.rpartition("/")[2]
        return any(
            fnmatch.fnmatchcase(name, pattern.rstrip("/"))
            for pattern in self.exclude
            if not pattern.endswith("/") or node.kind == "folder"
        )


@dataclass
class Outcome:
    """What a mirror makes of its target."""

    below: dict[str, Node]
    """By the keys of names."""
    failed: bool = False
    copied: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    must_stay: set[bytes] = field(default_factory=set)
    """Contents of the target that must be there afterwards, even if something fails."""


def expected(source: Node, target: Node, rules: Rules) -> Outcome:
    """Return what a mirror makes of ``target``."""
    outcome = Outcome({})
    outcome.below = _merge(source.below, target.below, rules, "", outcome)
    return outcome


def _resolved(below: dict[str, Node], node: Node) -> Node | None:
    seen = 0
    while node.kind == "link":
        seen += 1
        if node.to not in below or seen > len(below):
            return None
        node = below[node.to]
    return node


def _merge(
    source: dict[str, Node], target: dict[str, Node], rules: Rules, at: str, outcome: Outcome
) -> dict[str, Node]:
    result: dict[str, Node] = {}
    known = {rules.key(name): node for name, node in target.items()}
    # What a share has of a name in another case is one entry.
    shown = {rules.key(name): name for name in target}
    taken: set[str] = set()
    for name in sorted(source, key=lambda name: f"{at}{name}"):
        key, node = rules.key(name), source[name]
        old = known.pop(key, None)
        if rules.excludes(at + name, node) or not names.is_unicode(name) or key in taken:
            outcome.failed |= not rules.excludes(at + name, node)
            if old is not None:
                result[key] = keyed(old, rules.key)
                outcome.must_stay |= old.texts()
            continue
        taken.add(key)
        followed = node if node.kind != "link" else _resolved(source, node) if rules.follow else None
        if followed is None or followed.kind == "fifo":
            if old is not None:
                result[key] = keyed(old, rules.key)
                outcome.must_stay |= old.texts()
            continue
        if old is not None and old.kind != followed.kind:
            if not rules.delete or any(rules.excludes(name, one) for name, one in _all(old)):
                # What is left out in a folder cannot make way.
                outcome.failed = True
                outcome.must_stay |= old.texts()
                result[key] = keyed(old, rules.key)
                continue
            outcome.removed.add(at + shown[key])
            old = None
        if followed.kind == "folder":
            below = _merge(followed.below, old.below if old is not None else {}, rules, f"{at}{name}/", outcome)
            result[key] = replace(followed, below=below)
        elif old is not None and is_same(followed, old, rules):
            result[key] = old
            outcome.must_stay.add(old.text)
        else:
            outcome.copied.add(at + name)
            result[key] = replace(followed, mode=old.mode if old is not None else 0o644)
    for key, node in known.items():
        path = at + shown[key]
        rest = _kept(node, rules, path, outcome.removed) if rules.delete else node
        if rest is not None:
            result[key] = rest if rules.delete else keyed(rest, rules.key)
            outcome.must_stay |= rest.texts()
    return result


def _all(node: Node) -> Iterator[tuple[str, Node]]:
    for name, one in node.below.items():
        yield name, one
        yield from _all(one)


def _kept(node: Node, rules: Rules, path: str, removed: set[str]) -> Node | None:
    """Return what a removal leaves of an entry, and add to ``removed`` what it takes."""
    if rules.excludes(path, node):
        return keyed(node, rules.key)
    gone: set[str] = set()
    below = {
        rules.key(name): rest
        for name, inner in node.below.items()
        if (rest := _kept(inner, rules, f"{path}/{name}", gone)) is not None
    }
    removed |= gone if below else {path}
    return replace(node, below=below) if below else None


def keyed(node: Node, key: Map) -> Node:
    """Return an entry with what is below it by the keys of names."""
    return replace(node, below={key(name): keyed(one, key) for name, one in node.below.items()})


def is_same(source: Node, target: Node, rules: Rules) -> bool:
    """Whether a file is left out."""
    if len(source.text) != len(target.text):
        return False
    if rules.checksum:
        return source.text == target.text
    # Some file systems have no time before 1970: there such a file has the first one.
    return source.time // 100 == target.time // 100 or source.time < 0 == target.time


# On disks


def make(folder: Path, below: dict[str, Node], to_disk: Map = str) -> None:
    """Write entries to a folder."""
    for name, node in below.items():
        path = folder / to_disk(name)
        if node.kind == "folder":
            path.mkdir()
            make(path, node.below, to_disk)
        elif node.kind == "file":
            path.write_bytes(node.text)
            path.chmod(node.mode)
        elif node.kind == "link":
            path.symlink_to(node.to)
        else:
            os.mkfifo(path)
        if node.kind in ("file", "folder"):
            os.utime(path, ns=(0, node.time))


def read(folder: Path, from_disk: Map = str, key: Map = str) -> dict[str, Node]:
    """Return the entries of a folder, by the keys of their names."""
    found: dict[str, Node] = {}
    for path in folder.iterdir():
        status = path.lstat()
        kind = (
            "file"
            if stat.S_ISREG(status.st_mode)
            else "folder"
            if path.is_dir() and not path.is_symlink()
            else "link"
            if path.is_symlink()
            else "fifo"
        )
        found[key(from_disk(path.name))] = Node(
            kind,
            path.read_bytes() if kind == "file" else b"",
            status.st_mtime_ns,
            status.st_mode & 0o777,
            os.readlink(path) if kind == "link" else "",
            read(path, from_disk, key) if kind == "folder" else {},
        )
    return found


def differences(found: dict[str, Node], wanted: dict[str, Node], *, modes: bool, at: str = "") -> Iterator[str]:
    """Yield how two trees differ: in names, kinds, contents, times of files in units of SMB."""
    for key in sorted(found.keys() | wanted.keys()):
        one, two = found.get(key), wanted.get(key)
        if one is None or two is None:
            yield f"{at}{key!r}: {'missing' if one is None else 'too much'}"
        elif (one.kind, one.text, one.to) != (two.kind, two.text, two.to):
            yield f"{at}{key!r}: {one} in place of {two}"
        elif one.kind == "file" and one.time // 100 != two.time // 100:
            yield f"{at}{key!r}: time {one.time} in place of {two.time}"
        elif modes and one.kind == "file" and one.mode != two.mode:
            yield f"{at}{key!r}: mode {one.mode:o} in place of {two.mode:o}"
        else:
            yield from differences(one.below, two.below, modes=modes, at=f"{at}{key}/")


def on_samba(name: str) -> str:
    """The name of a file of Samba's folder."""
    return names.to_share(name)


def on_our_disk(name: str) -> str:
    """The name of a file of this server's folder."""
    return disk_names.to_disk(names.to_share(name))


def from_our_disk(name: str) -> str:
    """The name by which the client knows a file of this server's folder."""
    return names.from_share(disk_names.to_wire(name))
