"""The expected names and contents of the files, kept apart from the server and never read from it."""

from __future__ import annotations


class Model:
    """A folder's files by name; contents are bytes, and holes are zeros."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def create(self, name: str) -> None:
        self.files[name] = bytearray()

    def write(self, name: str, offset: int, data: bytes) -> None:
        content = self.files[name]
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def truncate(self, name: str, size: int) -> None:
        content = self.files[name]
        del content[size:]
        content.extend(bytes(size - len(content)))

    def zero(self, name: str, start: int, end: int) -> None:
        """Zero a range as FSCTL_SET_ZERO_DATA does: the size stays the same."""
        content = self.files[name]
        end = min(end, len(content))
        if start < end:
            content[start:end] = bytes(end - start)

    def copy(self, name: str, source: int, target: int, length: int) -> None:
        """Copy within one file; the source lies inside it."""
        self.write(name, target, bytes(self.files[name][source : source + length]))

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def delete(self, name: str) -> None:
        del self.files[name]

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self.files[name][offset : offset + length])
