"""The page of the log has every event that Windows has a number for."""

from __future__ import annotations

from pathlib import Path

from smb3server.state import audit
from smb3server.state.windows_events import AUDIT_EVENTS, EVENTS, WindowsEvent

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "logs.md").read_text()


def _where(table: dict[tuple[str, str], WindowsEvent], event: WindowsEvent) -> str:
    names: dict[str, list[str]] = {}
    for (name, case), value in table.items():
        if value == event:
            names.setdefault(name, []).append(case)
    shown = []
    for name, cases in names.items():
        words = ", ".join(f"`{case}`" for case in cases if case)
        shown.append(f"`{name}` ({words})" if words else f"`{name}`")
    return "; ".join(shown)


def test_the_page_has_every_number() -> None:
    for event in set(EVENTS.values()):
        row = f"| {event.number} | `{event.channel}` | {event.text} | {_where(EVENTS, event)} |"
        assert row in PAGE
    for event in set(AUDIT_EVENTS.values()):
        assert f"| {event.number} | {event.text} | {_where(AUDIT_EVENTS, event)} |" in PAGE


def test_numbers_belong_to_kinds_of_records_that_there_are() -> None:
    assert {kind for kind, _ in AUDIT_EVENTS} <= set(audit.KINDS)
