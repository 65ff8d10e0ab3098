"""The records of the report, compared with what tells users and programs of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_origin

import msgspec
import pytest

from smb3server.status import model
from smb3server.status.model import Record, Report

ROOT = Path(__file__).parents[3]
NOT_OF_THE_REPORT = {"channels_total", "sessions_total"}
"""What the page is told besides (``web.feed.shorten``)."""


def records(kind: type[Record] = Report) -> set[type[Record]]:
    """Return the records that a record consists of, itself included."""
    found = {kind}
    for entry in msgspec.structs.fields(kind):
        waiting = [entry.type]
        while waiting:
            declared = waiting.pop()
            waiting += get_args(declared) if get_origin(declared) else []
            if isinstance(declared, type) and not get_args(declared) and issubclass(declared, Record):
                found |= records(declared)
    return found


FIELDS = {kind.__name__: kind.__struct_fields__ for kind in records()}
ROWS = {
    "server": "ServerRecord",
    "cluster": "ClusterRecord",
    "sessions[]": "SessionRecord",
    "sessions[].opens[]`, `away[]": "AwayRecord",
    "channels[]": "ChannelRecord",
    "shares[]": "ShareRecord",
    "users[]": "UserRecord",
    "interfaces[]": "InterfaceRecord",
    "locks[]": "LockRecord",
    "process": "ProcessRecord",
}
"""Rows of docs/status.md and the records that they describe."""


def test_every_record_is_used() -> None:
    declared = {kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, Record)}
    assert declared - {Record} == records()


@pytest.mark.parametrize("row", ROWS)
def test_the_page_names_each_field(row: str) -> None:
    page = (ROOT / "docs" / "status.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{row}` |")]
    named = re.findall(r"`(\w+)(?:\[\])?`", line.split(" | ", 1)[1])
    missing = set(FIELDS[ROWS[row]]) - set(named) - {"rates", "rates_seconds"}
    assert not missing
    known = {name for kind in FIELDS.values() for name in kind}
    assert set(named) <= known | {"null"}, "the page names what no record has"


def test_the_page_names_each_record() -> None:
    page = (ROOT / "docs" / "status.md").read_text()
    named = set(re.findall(r"^\| `(\w+)(?:\[\])?", page, re.MULTILINE))
    assert set(Report.__struct_fields__) - named == {"away"}


def test_the_web_page_reads_fields_of_the_report() -> None:
    """A field that is renamed is renamed there, too."""
    script = (ROOT / "smb3server" / "web" / "static" / "app.js").read_text()
    known = {name for kind in FIELDS.values() for name in kind} | NOT_OF_THE_REPORT | {"read", "written"}
    holders = "report|server|channel|session|row|service|problem|choice|cluster|etcd|rates|rdma|caching|handles|entry"
    read = set(re.findall(rf"\b(?:{holders})\.([a-z]+(?:_[a-z]+)*)\b", script))
    ours = {name for name in read if "_" in name} | {"rdma_choices"}
    assert len(ours) > 15
    assert ours <= known, ours - known
