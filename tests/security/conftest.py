from __future__ import annotations

from collections.abc import Iterator

import pytest

from smb3server.dispatch.watchdog import Turn
from tests.ha.etcd import SecuredEtcd
from tests.watching import watched


@pytest.fixture(autouse=True)
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Turn]]:
    yield from watched(monkeypatch, 0.1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    server = SecuredEtcd(tmp_path_factory.mktemp("secured"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
