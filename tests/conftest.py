from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from itertools import chain, groupby
from pathlib import Path

import pytest

from smb3server.commands import load
from tests.lab import collected_before, examples, forked_starts, slow_shares
from tests.lab.etcd import Etcd, SecuredEtcd
from tests.lab.leftovers import Leftovers

examples.choose()
forked_starts.install()
load()
"""Servers that tests make have handlers of all commands, as the service's have."""
if slow_shares.wanted():
    slow_shares.force()
    os.environ["PYTHONPATH"] = slow_shares.python_path(Path(__file__).parents[1])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        collected_before.compile_for_workers(config)
        return
    # A pytest that a test starts would close /tmp/pytest-of-USER, which all runs share, to the users that tests act as.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(Path(config.option.basetemp).parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if slow_shares.wanted():
        slow_shares.leave_out(items)
    if items and len({item.path for item in items}) > 100:
        items[:] = _spread(items)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the modules of ``tests/system`` evenly among the others. Their tests mostly wait: all at
    once, they would leave the processors idle."""
    waiting: list[list[pytest.Item]] = []
    others: list[list[pytest.Item]] = []
    for path, module in groupby(items, lambda item: item.path):
        (waiting if "system" in path.parts else others).append(list(module))
    before = len(waiting)
    every = sum(map(len, others)) / (before + 1)
    spread: list[pytest.Item] = []
    passed = 0
    for module_items in others:
        spread += module_items
        passed += len(module_items)
        while waiting and passed >= every * (before - len(waiting) + 1):
            spread += waiting.pop(0)
    return spread + list(chain.from_iterable(waiting))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while 16,000 tests are made, and exempt them from collection: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def leftovers() -> Leftovers:
    return Leftovers()


@pytest.fixture(scope="module", autouse=True)
def nothing_left(leftovers: Leftovers) -> Iterator[None]:
    """Fail after a module whose tests, or those before them, left many descriptors open. ``select`` takes none above
    1,023, so that tests of other modules would fail."""
    yield
    leftovers.restore_levels()
    leftovers.collect()
    if (complaint := leftovers.complaint()) is not None:
        pytest.fail(complaint)


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
