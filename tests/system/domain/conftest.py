"""One domain for all tests of this folder: to make it takes half a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.domain.controller import Domain, why_not


@pytest.fixture(scope="session")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Domain]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    found = Domain(tmp_path_factory.mktemp("domain"))
    try:
        found.up()
        yield found
    finally:
        found.down()
