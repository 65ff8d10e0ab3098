"""Every backend the contract suite runs over."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.backends.base import Backend
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.memory.backend import MemoryBackend
from tests.lab.stores import descriptors, without_native_calls

LOCAL = {
    "local": LocalOptions(),
    "local-python": LocalOptions(),
    "local-no-openat2": LocalOptions(openat2=False),
    "local-no-xattrs": LocalOptions(xattrs="none"),
    "local-user-xattrs": LocalOptions(xattrs="user"),
    "local-tmpfs": LocalOptions(),
}


@pytest.fixture(params=[*LOCAL, "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """An empty store; afterwards no descriptor may be left open."""
    kind: str = request.param
    if kind == "local-python":
        without_native_calls(monkeypatch)
    before = descriptors()
    if kind == "memory":
        store: Backend = MemoryBackend(capacity=8 << 20)
        yield store
        store.close()
        return
    if kind == "local-tmpfs":
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("no tmpfs at /dev/shm")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            store = LocalBackend(directory, LOCAL[kind])
            yield store
            store.close()
    else:
        store = LocalBackend(tmp_path, LOCAL[kind])
        yield store
        store.close()
    assert len(descriptors()) <= len(before), "descriptors leaked"


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LocalBackend, Path]]:
    """(backend, its root), with something worth stealing beside the root."""
    root = tmp_path / "share"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    before = descriptors()
    store = LocalBackend(root, LocalOptions(openat2=request.param and None))
    yield store, root
    store.close()
    assert len(descriptors()) <= len(before), "descriptors leaked"


@pytest.fixture
def make_local(tmp_path: Path) -> Iterator[Callable[[LocalOptions], tuple[LocalBackend, Path]]]:
    made: list[LocalBackend] = []

    def make(options: LocalOptions) -> tuple[LocalBackend, Path]:
        root = tmp_path / f"share{len(made)}"
        root.mkdir()
        made.append(LocalBackend(root, options))
        return made[-1], root

    yield make
    for store in made:
        store.close()
