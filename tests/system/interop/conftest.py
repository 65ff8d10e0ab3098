"""The command itself, as a process of its own, for clients that nobody here wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.command import Served, serve, stop


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = serve(tmp_path_factory.mktemp("interop"))
    yield server
    assert stop(server) == 0
