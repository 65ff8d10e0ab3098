"""Windows of files in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.backends.local import mappings
from smb3server.backends.local.mappings import MappedFile

PAGE = 4096


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "WINDOW", 16 * PAGE)
    monkeypatch.setattr(mappings, "OVERLAP", 4 * PAGE)
    monkeypatch.setattr(mappings, "MAX_WINDOWS", 3)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "f").write_bytes(bytes(range(256)) * PAGE)
    descriptor = os.open(tmp_path / "f", os.O_RDWR)
    yield descriptor
    os.close(descriptor)
    assert not mappings._recent


def size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def test_parts_are_the_files_bytes(file: int) -> None:
    mapped = MappedFile()
    content = os.pread(file, size_of(file), 0)
    for offset in (0, 1, 15 * PAGE, 16 * PAGE - 1, 40 * PAGE + 7, len(content) - PAGE):
        assert mapped.part(file, offset, PAGE, len(content)) == content[offset : offset + PAGE]
    assert mapped.part(file, 15 * PAGE, 6 * PAGE, len(content)) is None, "longer than what windows have in common"
    mapped.close()


def test_a_file_that_grows_is_mapped_again(file: int) -> None:
    mapped = MappedFile()
    os.ftruncate(file, PAGE)
    first = mapped.part(file, 0, PAGE, PAGE)
    os.pwrite(file, b"n" * PAGE, PAGE)
    assert mapped.part(file, PAGE, PAGE, 2 * PAGE) == b"n" * PAGE
    assert len(mappings._recent) == 1
    assert first is not None
    assert len(bytes(first)) == PAGE
    mapped.close()


def test_a_file_that_is_shorter_than_it_was_is_not_mapped(file: int) -> None:
    mapped = MappedFile()
    os.ftruncate(file, PAGE)
    assert mapped.part(file, 20 * PAGE, PAGE, 40 * PAGE) is None
    mapped.close()


def test_the_process_has_few_windows(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was just used stays. One that has not been used for a while makes room."""
    now = [1000.0]
    monkeypatch.setattr(mappings.time, "monotonic", lambda: now[0])
    one, two = MappedFile(), MappedFile()
    size = size_of(file)
    kept = one.part(file, 0, PAGE, size)
    now[0] += 0.5
    assert one.part(file, 16 * PAGE, PAGE, size) is not None
    assert two.part(file, 0, PAGE, size) is not None
    assert two.part(file, 16 * PAGE, PAGE, size) is None
    now[0] += 0.6
    assert two.part(file, 16 * PAGE, PAGE, size) is not None
    assert two.part(file, 32 * PAGE, PAGE, size) is None
    assert one.part(file, 0, PAGE, size) is None, "its window has made room"
    assert kept is not None
    assert bytes(kept[:4]) == bytes(range(4)), "a view outlives its window"
    assert len(mappings._recent) == 3
    one.close()
    two.close()


def test_what_cannot_be_mapped(tmp_path: Path) -> None:
    read, write = os.pipe()
    assert MappedFile().part(read, 0, PAGE, PAGE) is None
    os.close(read)
    os.close(write)
