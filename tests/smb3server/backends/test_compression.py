"""Compression on a file system that has it: btrfs on a loop device, which takes root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.backends.base import Disposition, OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.wire.attributes import COMPRESSED
from tools.torture.volumes import volume


@pytest.fixture
def share(tmp_path: Path) -> Iterator[LocalBackend]:
    if os.geteuid() or shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        pytest.skip("takes root and btrfs-progs")
    with volume(tmp_path, "volume", "btrfs") as (folder, mounted):
        if not mounted:
            pytest.skip("no btrfs on loop devices here")
        backend = LocalBackend(folder)
        try:
            yield backend
        finally:
            backend.close()


def test_state_attribute_and_inheritance(share: LocalBackend) -> None:
    assert share.supports_compression
    directory = share.open(OpenRequest(("d",), disposition=Disposition.CREATE, directory=True))
    directory.set_compressed(True)
    file = share.open(OpenRequest(("d", "f"), disposition=Disposition.CREATE, read=True, write=True))
    assert directory.info().attributes & COMPRESSED
    assert file.info().attributes & COMPRESSED
    file.write_from([b"compressible " * 10_000], 0)
    file.set_compressed(False)
    assert not file.info().attributes & COMPRESSED
    data = bytearray(130_000)
    assert file.read_into([memoryview(data)], 0) == 130_000
    assert data == b"compressible " * 10_000
    file.set_attributes(COMPRESSED)
    assert not file.info().attributes & COMPRESSED
    file.close()
    directory.close()


def test_other_file_systems_say_no(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    try:
        if backend.supports_compression:
            pytest.skip("the temporary directory is on btrfs")
        file = backend.open(OpenRequest(("f",), disposition=Disposition.CREATE, read=True, write=True))
        assert not file.info().attributes & COMPRESSED
        file.close()
    finally:
        backend.close()
