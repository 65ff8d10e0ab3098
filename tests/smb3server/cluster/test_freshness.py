"""Events are acted upon once, and not long after they were made."""

from __future__ import annotations

from smb3server.cluster.view import Freshness, stamped


def test_an_event_is_new_once() -> None:
    fresh = Freshness()
    event = stamped({"kind": "report"}, 100)
    assert not fresh.is_new(event)
    fresh.advance(100)
    assert fresh.is_new(event)
    assert not fresh.is_new(event)
    assert fresh.is_new(stamped({"kind": "report"}, 100))


def test_an_event_of_before_the_start_is_not_new() -> None:
    fresh = Freshness()
    fresh.advance(100)
    assert not fresh.is_new(stamped({}, 99))


def test_what_is_forgotten_is_too_old() -> None:
    """Also while nothing else changes in the store, so that its version stands still."""
    fresh = Freshness()
    fresh.advance(100)
    event = stamped({}, 105)
    assert fresh.is_new(event)
    for version in (105, 105, 105, 106, 106, 107):
        fresh.advance(version)
        assert not fresh.is_new(event)
    assert fresh.is_new(stamped({}, 107))


def test_late_events_are_good_for_a_while() -> None:
    fresh = Freshness()
    fresh.advance(100)
    late, later = stamped({}, 101), stamped({}, 101)
    fresh.advance(101)
    assert fresh.is_new(late)
    fresh.advance(150)
    assert fresh.is_new(later)
    fresh.advance(151)
    assert not fresh.is_new(stamped({}, 101))


def test_events_without_a_stamp_are_not_new() -> None:
    fresh = Freshness()
    fresh.advance(0)
    for event in ({}, {"number": 1, "after": 1}, {"number": "1"}, {"number": "1", "after": "1"}):
        assert not fresh.is_new(event)
