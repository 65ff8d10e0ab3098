from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.remote import Home, home


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A server for all tests of a module."""
    with home(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def folder(served: Home) -> Iterator[Path]:
    """A folder of the share for one test."""
    found = served.folder / "test"
    found.mkdir()
    yield found
    shutil.rmtree(found)
