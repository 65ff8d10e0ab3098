"""A Witness service on loopback, on a thread of its own: the clients in these tests block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.witness import Running, settings
from witness.registrations import Limits


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(settings(limits=Limits(default_keepalive=1)))
    yield server
    server.stop()
