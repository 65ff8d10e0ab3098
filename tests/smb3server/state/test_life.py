"""Which changes of a connection's life there are, and that no others are made."""

from __future__ import annotations

import itertools

import pytest

from smb3server.state.life import LEGAL, ConnectionLife, change
from smbdirect.life import IllegalChange


def test_a_connection_goes_from_its_beginning_to_its_end() -> None:
    life = ConnectionLife.NEW
    for after in list(ConnectionLife)[1:]:
        life = change(life, after)
    assert life is ConnectionLife.CLOSED


def test_it_may_end_at_any_time_and_never_goes_back() -> None:
    order = list(ConnectionLife)
    assert list(LEGAL) == order
    for before, after in itertools.product(order, order):
        if order.index(after) <= order.index(before):
            with pytest.raises(IllegalChange):
                change(before, after)
    assert all(ConnectionLife.CLOSED in LEGAL[before] for before in order[:-1])


def test_nobody_logs_on_before_the_negotiation() -> None:
    for before in (ConnectionLife.NEW, ConnectionLife.INVITED):
        with pytest.raises(IllegalChange):
            change(before, ConnectionLife.AUTHENTICATED)
