"""What the files must look like: names and contents, kept beside the server and never asked of it."""

from __future__ import annotations


class Model:
    """A folder's files by name; contents as bytes, holes as zeros."""

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
        """As FSCTL_SET_ZERO_DATA: the size stays."""
        content = self.files[name]
        end = min(end, len(content))
        if start < end:
            content[start:end] = bytes(end - start)

    def copy(self, name: str, source: int, target: int, length: int) -> None:
        """Within one file; the source lies inside it."""
        self.write(name, target, bytes(self.files[name][source : source + length]))

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def delete(self, name: str) -> None:
        del self.files[name]

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self.files[name][offset : offset + length])
