from __future__ import annotations

import pytest

from smb3server.lab.bench import client
from smb3server.lab.bench.errors import BenchError


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where the client of the benchmarks cannot be compiled."""
    try:
        client.build(tmp_path_factory.mktemp("compiler"))
    except BenchError as error:
        pytest.skip(str(error))
