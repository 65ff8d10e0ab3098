"""Which changes of a connection's life there are, and that no others are made."""

from __future__ import annotations

import itertools

import pytest

from smb3server.state.life import CHANGES, IllegalChange, Life, changed


def test_a_connection_goes_from_its_beginning_to_its_end() -> None:
    life = Life.NEW
    for after in (Life.INVITED, Life.NEGOTIATED, Life.AUTHENTICATED, Life.CLOSING, Life.CLOSED):
        life = changed(life, after)
    assert life is Life.CLOSED


def test_it_may_end_at_any_time_and_never_goes_back() -> None:
    order = list(Life)
    assert list(CHANGES) == order
    for before, after in itertools.product(order, order):
        if order.index(after) <= order.index(before):
            with pytest.raises(IllegalChange):
                changed(before, after)
    assert all(Life.CLOSED in CHANGES[before] for before in order[:-1])


def test_nobody_logs_on_before_the_negotiation() -> None:
    for before in (Life.NEW, Life.INVITED):
        with pytest.raises(IllegalChange):
            changed(before, Life.AUTHENTICATED)
