"""Calls that tests make to a backend, in few words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from smb3server.backends.base import Backend, DirectoryEntry, Disposition, Handle, OpenRequest, Path, Search
from smb3server.backends.local import file_calls, syscalls

CREATE, OPEN, OPEN_IF = Disposition.CREATE, Disposition.OPEN, Disposition.OPEN_IF


@contextmanager
def opened(backend: Backend, *path: str, **options: object) -> Iterator[Handle]:
    with closing(backend.open(OpenRequest(path, **options))) as handle:  # type: ignore[arg-type]
        yield handle


def put(backend: Backend, *path: str, data: bytes = b"", stream: str = "") -> None:
    with opened(backend, *path, disposition=OPEN_IF, write=True, stream=stream) as handle:
        handle.write_from([data], 0)


def get(backend: Backend, *path: str, stream: str = "") -> bytes:
    with opened(backend, *path, read=True, stream=stream) as handle:
        return read(handle)


def read(handle: Handle, length: int = 1 << 20, offset: int = 0) -> bytes:
    buffer = bytearray(length)
    return bytes(buffer[: handle.read_into([memoryview(buffer)], offset)])


def mkdir(backend: Backend, *path: str) -> None:
    with opened(backend, *path, disposition=CREATE, directory=True):
        pass


def listing(backend: Backend, *path: str) -> list[str]:
    with opened(backend, *path, directory=True, read=True) as handle:
        found = [entry.name for entry in handle.scan()]
    assert found[:2] == [".", ".."]
    return sorted(found[2:])


def every_entry(search: Search, most: int = 7) -> list[DirectoryEntry]:
    """Return what a search finds, ``most`` entries at a time."""
    found: list[DirectoryEntry] = []
    while (some := search.read(most)) is not None:
        assert len(some) <= most
        found += some
    assert search.read(most) is None
    return found


def without_native_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the local store make its system calls in Python."""
    for name in syscalls.__all__:
        monkeypatch.setattr(syscalls, name, getattr(file_calls, name))


def exists(backend: Backend, path: Path) -> bool:
    try:
        backend.stat(path)
    except FileNotFoundError:
        return False
    return True


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
