"""A small file system as MS-FSA describes it: names, contents, opens, share modes, locks, leases, deletion.

It says of each operation which statuses are right. Where several reasons forbid an operation any of them is: the order
of the checks is tested elsewhere. What an operation that succeeds breaks is exact; one that fails may break it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.status import NtStatus

Path = tuple[str, ...]
Key = tuple[int, int]
"""A lease: client and number of the node."""

READ, WRITE, DELETE = 0x120089, 0x120116, int(Access.DELETE)
SHARE_READ, SHARE_WRITE, SHARE_DELETE = 1, 2, 4
R, H, W = 1, 2, 4
"""Rights of a lease. [MS-SMB2 2.2.13.2.8]"""
OVERWRITES = (CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF, CreateDisposition.SUPERSEDE)
MUST_EXIST = (CreateDisposition.OPEN, CreateDisposition.OVERWRITE)


@dataclass(eq=False)
class Node:
    """A file or a directory."""

    number: int
    directory: bool
    content: bytearray = field(default_factory=bytearray)
    pending: bool = False
    """Whether it is deleted with its last open."""


@dataclass(eq=False)
class Opened:
    """An open."""

    client: int
    node: Node
    access: int
    share: int
    delete_on_close: bool = False
    key: Key | None = None
    """Its lease."""
    locks: list[tuple[int, int, bool]] = field(default_factory=list)
    """Offset, length, exclusive."""


Outcome = set[NtStatus]
"""The statuses that are right; empty for success."""


def _denied(access: int, share: int) -> bool:
    return bool(
        (access & 0x21 and not share & SHARE_READ)
        or (access & 0x06 and not share & SHARE_WRITE)
        or (access & DELETE and not share & SHARE_DELETE)
    )


class Model:
    """The file system."""

    def __init__(self) -> None:
        self.root = Node(0, True)
        self.nodes: dict[Path, Node] = {(): self.root}
        self.opens: list[Opened] = []
        self.leases: dict[Key, int] = {}
        self.next_number = 1
        self.possible: dict[Key, int] = {}
        """What the operation at hand breaks, and to what."""

    # -- what there is

    def path_of(self, node: Node) -> Path:
        return next(path for path, there in self.nodes.items() if there is node)

    def children(self, path: Path) -> Iterator[Path]:
        return (there for there in self.nodes if len(there) > len(path) and there[: len(path)] == path)

    def opens_of(self, node: Node) -> list[Opened]:
        return [opened for opened in self.opens if opened.node is node]

    def conflicts(self, node: Node, access: int, share: int) -> bool:
        """Say whether an open is in the way. [MS-FSA 2.1.5.1.2.2]"""
        return any(
            _denied(access, other.share) or _denied(other.access, share)
            for other in self.opens_of(node)
            if other.access & (0x27 | DELETE)
        )

    # -- breaks [MS-FSA 2.1.4.12]

    def _break(self, node: Node, own: Key | None, keep: int) -> None:
        for key, state in self.leases.items():
            if key[1] == node.number and key != own and state & ~keep:
                left = state & keep
                self.possible[key] = left if left & R else 0

    def settle(self, broken: Iterable[tuple[Key, int]], succeeded: bool) -> None:
        """Take over the breaks that were seen. Raises ``AssertionError`` if they are others than those that are due."""
        seen = dict(broken)
        due, self.possible = self.possible, {}
        assert seen.items() <= due.items(), f"broken: {seen}, due: {due}"
        if succeeded:
            assert seen == due, f"broken: {seen}, due: {due}"
        self.leases.update(seen)

    # -- CREATE [MS-FSA 2.1.5.1]

    def create(
        self, path: Path, access: int, share: int, disposition: int, directory: bool, delete: bool, own: int | None
    ) -> Outcome:
        """Say what a CREATE may answer. ``own`` is the client whose lease it names, or None."""
        wrong: Outcome = set()
        parent = self.nodes.get(path[:-1])
        node = self.nodes.get(path)
        if parent is None or not parent.directory:
            return {NtStatus.OBJECT_PATH_NOT_FOUND}
        if node is None:
            if disposition in MUST_EXIST:
                wrong.add(NtStatus.OBJECT_NAME_NOT_FOUND)
            if parent.pending:
                wrong.add(NtStatus.DELETE_PENDING)
            return wrong
        if disposition == CreateDisposition.CREATE:
            wrong.add(NtStatus.OBJECT_NAME_COLLISION)
        if node.pending:
            wrong.add(NtStatus.DELETE_PENDING)
        if directory != node.directory:
            wrong.add(NtStatus.NOT_A_DIRECTORY if directory else NtStatus.FILE_IS_A_DIRECTORY)
        if wrong:
            return wrong
        key = (own, node.number) if own is not None else None
        if self.conflicts(node, access, share):
            self._break(node, key, R | W)
            return {NtStatus.SHARING_VIOLATION}
        self._break(node, key, 0 if disposition in OVERWRITES else R | H)
        return set()

    def created(
        self, client: int, path: Path, access: int, share: int, disposition: int, directory: bool, delete: bool
    ) -> Opened:
        """Carry a CREATE out."""
        node = self.nodes.get(path)
        if node is None:
            node = self.nodes[path] = Node(self.next_number, directory)
            self.next_number += 1
        elif disposition in OVERWRITES:
            node.content.clear()
        opened = Opened(client, node, access, share, delete)
        self.opens.append(opened)
        return opened

    def leased(self, opened: Opened, state: int) -> None:
        """Note the lease that was granted. Write caching is for the only client alone. [MS-FSA 2.1.5.18]"""
        key = opened.key = (opened.client, opened.node.number)
        self.leases[key] = state
        others = [other for other in self.opens_of(opened.node) if other.key != key]
        assert not (state & W and others), "write caching beside another client"

    def close(self, opened: Opened) -> Outcome:
        """Say what a CLOSE may answer. Deletion on close breaks handle caching, which MS-FSA 2.1.5.5 leaves open."""
        if opened.delete_on_close:
            self._break(opened.node, opened.key, R | W)
        return set()

    def closed(self, opened: Opened) -> None:
        """Carry a CLOSE out. [MS-FSA 2.1.5.5]"""
        node = opened.node
        self.opens.remove(opened)
        if opened.delete_on_close and not any(self.children(self.path_of(node))):
            node.pending = True
        left = self.opens_of(node)
        if opened.key is not None and all(other.key != opened.key for other in left):
            del self.leases[opened.key]
        if node.pending and not left:
            del self.nodes[self.path_of(node)]

    # -- data and locks

    def read(self, opened: Opened, offset: int, length: int) -> tuple[Outcome, bytes]:
        """[MS-FSA 2.1.5.3]"""
        wrong: Outcome = set() if opened.access & 1 else {NtStatus.ACCESS_DENIED}
        if any(lock[2] for lock in self._locks(opened.node, offset, length, besides=opened)):
            wrong.add(NtStatus.FILE_LOCK_CONFLICT)
        return wrong, bytes(opened.node.content[offset : offset + length])

    def write(self, opened: Opened, offset: int, length: int) -> Outcome:
        """[MS-FSA 2.1.5.4]"""
        if not opened.access & 2:
            return {NtStatus.ACCESS_DENIED}
        own_shared = any(not lock[2] for lock in self._locks(opened.node, offset, length))
        if own_shared or any(self._locks(opened.node, offset, length, besides=opened)):
            return {NtStatus.FILE_LOCK_CONFLICT}
        self._break(opened.node, opened.key, 0)
        return set()

    def resize(self, opened: Opened) -> Outcome:
        """[MS-FSA 2.1.5.15.5]"""
        if not opened.access & 2:
            return {NtStatus.ACCESS_DENIED}
        self._break(opened.node, opened.key, 0)
        return set()

    def _locks(
        self, node: Node, offset: int, length: int, besides: Opened | None = None
    ) -> Iterator[tuple[int, int, bool]]:
        for other in self.opens_of(node):
            for lock in other.locks:
                if other is not besides and lock[0] < offset + length and offset < lock[0] + lock[1]:
                    yield lock

    def lock(self, opened: Opened, offset: int, length: int, exclusive: bool) -> Outcome:
        """[MS-FSA 2.1.5.8]"""
        if not opened.access & 3:
            return {NtStatus.ACCESS_DENIED}
        others = any(lock[2] for lock in self._locks(opened.node, offset, length, besides=opened))
        if others or (exclusive and any(self._locks(opened.node, offset, length))):
            return {NtStatus.LOCK_NOT_GRANTED}
        return set()

    # -- names

    def rename(self, opened: Opened, target: Path, replace: bool) -> Outcome:
        """[MS-FSA 2.1.5.15.12]"""
        node, source = opened.node, self.path_of(opened.node)
        parent, there = self.nodes.get(target[:-1]), self.nodes.get(target)
        if not opened.access & DELETE:
            return {NtStatus.ACCESS_DENIED}
        self._break(node, opened.key, R | W)
        wrong: Outcome = set()
        if parent is None or not parent.directory:
            wrong.add(NtStatus.OBJECT_PATH_NOT_FOUND)
        elif parent.pending:
            wrong |= {NtStatus.DELETE_PENDING, NtStatus.ACCESS_DENIED}
        elif self.conflicts(parent, 2, SHARE_READ | SHARE_WRITE):
            # The target's directory is opened for the change.
            wrong.add(NtStatus.SHARING_VIOLATION)
        for path in self.children(source):
            self._break(self.nodes[path], None, R | W)
            if self.opens_of(self.nodes[path]):
                wrong.add(NtStatus.ACCESS_DENIED)
        if there is not None and not replace:
            wrong.add(NtStatus.OBJECT_NAME_COLLISION)
        elif there is not None:
            self._break(there, None, R | W)
            if there.directory or node.directory or self.opens_of(there):
                wrong.add(NtStatus.ACCESS_DENIED)
            if there.pending:
                wrong |= {NtStatus.DELETE_PENDING, NtStatus.ACCESS_DENIED}
        return wrong

    def renamed(self, opened: Opened, target: Path) -> None:
        """Carry a rename out."""
        source = self.path_of(opened.node)
        for path in [source, *self.children(source)]:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)

    def dispose(self, opened: Opened, delete: bool) -> Outcome:
        """[MS-FSA 2.1.5.15.3]"""
        if not opened.access & DELETE:
            return {NtStatus.ACCESS_DENIED}
        if delete and any(self.children(self.path_of(opened.node))):
            return {NtStatus.DIRECTORY_NOT_EMPTY}
        if delete:
            self._break(opened.node, opened.key, R | W)
        return set()
