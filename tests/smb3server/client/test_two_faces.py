"""The blocking face of the library has the methods of the asynchronous one, with their arguments."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from smb3server.client import Share
from smb3server.client.sync import Share as BlockingShare
from smb3server.client.sync import connect
from tests.lab.remote import PASSWORD, Home

METHODS = [name for name, value in vars(Share).items() if not name.startswith("_") and inspect.isfunction(value)]
OTHERWISE = {"open", "close"}
"""Files are those of ``io``, which have other arguments; ``close`` leaves a parent process's shares alone."""


@pytest.mark.parametrize("name", [name for name in METHODS if name not in OTHERWISE])
def test_methods_have_the_same_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (BlockingShare, Share))
    assert ours.parameters == theirs.parameters
    assert not inspect.iscoroutinefunction(getattr(BlockingShare, name))
    assert inspect.getdoc(getattr(BlockingShare, name))


def test_properties_are_the_same() -> None:
    ours, theirs = (
        {name for name, value in vars(kind).items() if isinstance(value, property)} for kind in (BlockingShare, Share)
    )
    assert ours == theirs


def test_arguments_that_the_blocking_face_takes(served: Home, folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_bytes(b"1")
    (folder / "into").mkdir()
    with connect(served.url, password=PASSWORD, rdma="off") as share:
        with pytest.raises(IsADirectoryError):
            share.download("test/a", tmp_path, exact=True)
        with pytest.raises(FileExistsError):
            share.upload(folder / "a", "test/a", exact=True, replace=False)
        share.set_attributes("test/a", 1)
        share.remove("test/a", force=True)
        assert [[entry.name for entry in folders] for _, folders, _ in share.walk("test")] == [["into"], []]
    assert not (folder / "a").exists()
