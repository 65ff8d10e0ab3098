from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ha.etcd import SecuredEtcd


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    server = SecuredEtcd(tmp_path_factory.mktemp("secured"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
