"""What a node makes of the keys in the store."""

from __future__ import annotations

from smb3server.cluster.view import MoveClientEvent, NodeChanged, NodeEvent, Question, ReportEvent, ServiceEvent, View
from smb3server.persistence.store import Change


def test_view() -> None:
    view = View("n/c/")

    def change(key: str, value: bytes | None) -> object:
        return view.apply(Change(f"n/c/{key}", value, 1))

    assert change("nodes/a", b'{"addresses": []}') == NodeEvent("a", True)
    assert change("nodes/a", b'{"addresses": []}') is None
    assert change("nodes/a", b'{"addresses": ["10.0.0.1"], "services": ["s", "t"]}') == NodeChanged("a")
    # Who has put the owner key serves nobody yet.
    assert change("services/s/owner", b'{"node": "a"}') is None and view.owners == {"s": "a"}
    assert view.served_by("s") is None and view.services() == {"s", "t"}
    assert change("services/s/serving", b'{"node": "a", "since": 1}') == ServiceEvent("s", "a")
    assert change("services/s/serving", b'{"node": "a", "since": 2}') is None
    assert change("services/s/owner", b'{"node": "a"}') is None
    assert change("services/s/owner", b'{"node": "b"}') == ServiceEvent("s", None)
    assert change("services/s/serving", b'{"node": "b"}') == ServiceEvent("s", "b")
    assert change("services/s/serving", None) == ServiceEvent("s", None)
    assert change("services/s/owner", None) is None and not view.owners
    assert change("services/s/target", b'{"node": "b"}') is None and view.targets == {"s": "b"}
    assert change("draining/a", b"{}") is None and view.draining == {"a"}
    assert change("draining/a", None) is None and not view.draining
    told = b'{"kind": "move-client", "client": "c", "node": "a", "answer": "n/answers/1", "lease": 5}'
    assert change("events/x", told) == MoveClientEvent("c", "a", Question("n/answers/1", 5))
    assert change("events/x", b'{"kind": "report", "lease": "5"}') == ReportEvent(Question("None", 0))
    assert change("events/x", b"not json") is None and change("events/x", None) is None
    assert change("nodes/a", None) == NodeEvent("a", False)


def test_what_is_noted_without_an_event() -> None:
    view = View("n/c/")

    def change(key: str, value: bytes | None) -> object:
        return view.apply(Change(f"n/c/{key}", value, 1))

    assert change("services/s/last", b'{"node": "a", "address": "10.0.0.1"}') is None and view.last == {"s": "a"}
    assert change("services/s/fencing", b'{"node": "a", "problem": "no power"}') is None
    assert view.fencing["s"]["problem"] == "no power"
    assert change("services/s/storage/my%20data", b'{"mark": "1f"}') is None and view.marks == {
        "s": {"my%20data": "1f"}
    }
    for key in ("last", "fencing", "storage/my%20data"):
        assert change(f"services/s/{key}", None) is None
    assert not view.last and not view.fencing and not view.marks["s"]
    change("nodes/a", b'{"storage_missing": {"s": "not mounted"}}')
    change("nodes/b", b'{"storage_missing": "forged"}')
    found = [view.lacks_storage(node, service) for node in ("a", "b", "c") for service in ("s", "t")]
    assert found == ["not mounted", "", "", "", "", ""]
