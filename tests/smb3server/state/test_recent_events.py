"""The latest events in memory: rings with record numbers that go on. [MS-EVEN 3.1.1.2]"""

from __future__ import annotations

from collections.abc import Mapping

from smb3server.state.recent_events import (
    AUDIT_FAILURE,
    AUDIT_SUCCESS,
    MAX_EVENTS,
    MAX_TEXT,
    RecentEvents,
    RemembersAudit,
)


def test_the_oldest_event_makes_room_and_numbers_go_on() -> None:
    log = RecentEvents(lambda: 7.0)
    assert (len(log), log.oldest, log.newest, log.get(0)) == (0, 0, 0, None)
    for number in range(MAX_EVENTS + 2):
        log.add(number, 4, "source", "text")
    assert (len(log), log.oldest, log.newest) == (MAX_EVENTS, 3, MAX_EVENTS + 2)
    first = log.get(3)
    assert first is not None and (first.number, first.time) == (2, 7.0)
    assert log.get(2) is None and log.get(MAX_EVENTS + 3) is None


def test_long_strings_are_cut() -> None:
    log = RecentEvents()
    log.add(1, 4, "source", "x" * (MAX_TEXT + 1))
    event = log.get(1)
    assert event is not None and event.strings == ("x" * MAX_TEXT,)


class Sink:
    def __init__(self) -> None:
        self.records: list[Mapping[str, object]] = []

    def put(self, record: Mapping[str, object]) -> None:
        self.records.append(record)


def test_audit_records_with_a_number_are_remembered_and_all_are_handed_on() -> None:
    sink, log = Sink(), RecentEvents()
    audit = RemembersAudit(sink, log)
    audit.put({"event": "rename", "result": "success"})
    audit.put({"event": "open", "result": "success", "event_id": 5145, "event_channel": "Security"})
    audit.put({"event": "denied", "result": "ACCESS_DENIED", "event_id": 5145, "event_channel": "Security"})
    assert len(sink.records) == 3
    opened, denied = log.get(1), log.get(2)
    assert opened is not None and (opened.number, opened.type) == (5145, AUDIT_SUCCESS)
    assert opened.strings == ("event: open", "result: success")
    assert denied is not None and denied.type == AUDIT_FAILURE and len(log) == 2
