from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.commands import load
from tests.lab.etcd import Etcd, SecuredEtcd

load()
"""Servers that tests make have handlers of all commands, as the service's have."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    folder: Path = tmp_path_factory.mktemp("etcd")
    server = Etcd(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    server = SecuredEtcd(tmp_path_factory.mktemp("secured"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
