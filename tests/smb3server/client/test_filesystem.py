"""The file system ``smbd://``: fsspec's own tests for file systems, and what users of fsspec do with it."""

from __future__ import annotations

import csv
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS

from smb3server.client.filesystem import SmbDirectFileSystem
from tests.lab.remote import PASSWORD, USER, Home

# fsspec's classes have fixtures of this kind.
pytestmark = pytest.mark.filterwarnings("ignore:Class-scoped fixtures defined as instance methods")
# Tests run in a checkout, whose entry points are not installed.
fsspec.register_implementation("smbd", SmbDirectFileSystem, clobber=True)


def url(served: Home, path: str) -> str:
    return f"smbd://{USER}@127.0.0.1:{served.port}/share/{path}"


def options(served: Home) -> dict[str, Any]:
    return {"password": PASSWORD, "rdma": "prefer", "rdma_port": served.rdma_port}


class Fixtures(AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture(scope="class")
    def fs(self, served: Home) -> Iterator[SmbDirectFileSystem]:
        found = SmbDirectFileSystem("127.0.0.1", served.port, USER, **options(served), skip_instance_cache=True)
        yield found
        found.close()

    @pytest.fixture
    def fs_path(self) -> str:
        return "/share"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return True


_GLOBS = [
    pytest.param(*values, marks=[pytest.mark.long] if number % 3 else [])
    for number, values in enumerate(GLOB_EDGE_CASES_TESTS["argvalues"])
]
"""Every third in every run: what the patterns mean is fsspec's matter."""


class TestCopy(AbstractCopyTests, Fixtures):  # type: ignore[misc]
    @pytest.mark.parametrize(GLOB_EDGE_CASES_TESTS["argnames"], _GLOBS)
    def test_copy_glob_edge_cases(
        self,
        path: Any,
        recursive: Any,
        maxdepth: Any,
        expected: Any,
        fs: Any,
        fs_join: Any,
        fs_glob_edge_cases_files: Any,
        fs_target: Any,
        fs_sanitize_path: Any,
    ) -> None:
        super().test_copy_glob_edge_cases(
            path, recursive, maxdepth, expected, fs, fs_join, fs_glob_edge_cases_files, fs_target, fs_sanitize_path
        )


# Copying has the same patterns in every run.
class TestGet(AbstractGetTests, Fixtures):  # type: ignore[misc]
    test_get_glob_edge_cases = pytest.mark.long(AbstractGetTests.test_get_glob_edge_cases)


class TestPut(AbstractPutTests, Fixtures):  # type: ignore[misc]
    test_put_glob_edge_cases = pytest.mark.long(AbstractPutTests.test_put_glob_edge_cases)


class TestOpen(AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass


class TestPipe(AbstractPipeTests, Fixtures):  # type: ignore[misc]
    pass


def test_the_entry_point_is_this_class() -> None:
    points = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["fsspec.specs"]["smbd"].partition(":")
    assert getattr(importlib.import_module(module), name) is SmbDirectFileSystem


def test_a_table_by_url(served: Home) -> None:
    with fsspec.open(url(served, "t/table.csv"), "w", newline="", **options(served)) as file:
        csv.writer(file).writerows([["city", "people"], ["Köln", 1_087_353], ["Łódź", 648_711]])
    with fsspec.open(url(served, "t/table.csv"), "r", newline="", **options(served)) as file:
        assert [row["city"] for row in csv.DictReader(file)] == ["Köln", "Łódź"]
    with fsspec.open_files(url(served, "t/*.csv"), "rb", **options(served))[0] as file:
        file.seek(-7, 2)
        assert file.read() == b"648711\r\n"[-7:]
    fsspec.filesystem("smbd", host="127.0.0.1", port=served.port, username=USER, **options(served)).close()


def test_big_data_goes_by_rdma(served: Home) -> None:
    data = bytes(range(256)) * 20_000
    with fsspec.open(url(served, "big.bin"), "wb", **options(served)) as file:
        file.write(data)
    found, path = fsspec.url_to_fs(url(served, "big.bin"), **options(served))
    assert found.cat_file(path) == data
    assert found.cat_file(path, 100, 5000) == data[100:5000]
    share = found._at(path)[0]
    assert share.uses_rdma
    assert share.moved["iwarp"][0] >= len(data)
    assert found.unstrip_protocol(path) == url(served, "big.bin")
    found.close()
