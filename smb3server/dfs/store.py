"""The store of a namespace: folders in memory, which cannot be written. The links among them are reparse points.

No folder of the host is behind it. [MS-DFSC 1.3, MS-FSCC 2.1.2.1]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from smb3server.backends.base import Handle, Kind, OpenRequest, Path
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.backends.memory.nodes import Entry, Node
from smb3server.dfs.namespace import Namespace
from smb3server.wire import attributes as attr
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.upcase import upcase

_REPARSE_POINT = struct.pack("<IHH", attr.TAG_DFS, 0, 0)


class NamespaceStore(MemoryBackend):
    """The folders of one namespace."""

    supports_streams = False

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(0, read_only=True)
        self.namespace = Namespace(namespace.name)
        self.use(namespace)

    def use(self, namespace: Namespace) -> list[tuple[Path, bool]]:
        """Take over other links. Folders that stay are the same ones as before.

        Return the folders that came (True) and that went (False), those further up first."""
        changes: list[tuple[Path, bool]] = []
        links = {link.path for link in namespace.links}
        wanted = {
            tuple(map(upcase, link.path[:depth])) for link in namespace.links for depth in range(1, len(link.path) + 1)
        }
        for path, entry in list(self._folders(self.root, ())):
            if tuple(map(upcase, path)) not in wanted and entry.parent is not None:
                self.detach(entry)
                changes.append((path, False))
        for link in namespace.links:
            parent = self.root
            for depth, name in enumerate(link.path, 1):
                path = link.path[:depth]
                found = parent.node.children.get(upcase(name))
                if found is None:
                    self._inodes += 1
                    found = self.attach(parent, name, Node(self._inodes, Kind.DIRECTORY, 0))
                    changes.append((path, True))
                found.node.reparse = _REPARSE_POINT if path in links else None
                parent = found
        self.namespace = namespace
        return changes

    def _folders(self, above: Entry, path: Path) -> Iterator[tuple[Path, Entry]]:
        for entry in list(above.node.children.values()):
            here = (*path, entry.name)
            yield here, entry
            yield from self._folders(entry, here)

    def open(self, request: OpenRequest) -> Handle:
        """Open a folder. What lies below a link lies elsewhere; the link itself is opened as a reparse point only.

        Raises also ``StatusError``: PATH_NOT_COVERED. [MS-DFSC 3.2.4.1]"""
        link = self.namespace.covering(request.path)
        if link is not None and not (link.path and request.open_reparse_point and len(request.path) == len(link.path)):
            raise StatusError(NtStatus.PATH_NOT_COVERED)
        return super().open(request)
