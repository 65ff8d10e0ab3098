"""Names and SIDs of the domain: what a controller answers, and how long it is believed. Answers were recorded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from smb3server.access.descriptor import Sid
from smb3server.auth.directory import Known, Use
from smb3server.domain import names as module
from smb3server.domain.names import LSARPC, ControllerNames, Names
from smb3server.domain.user import NoController

RECORDED = [
    (int(opnum), bytes.fromhex(answer))
    for opnum, answer in map(str.split, (Path(__file__).parent / "recorded_lookups.txt").read_text().splitlines())
]
DOMAIN = "S-1-5-21-2978586452-3620782389-100791958"
ALICE = Known(Sid.parse(f"{DOMAIN}-1104"), Use.USER, "CORP", "alice")


def sid(rid: int) -> Sid:
    return Sid.parse(f"{DOMAIN}-{rid}")


class Replayed:
    """The secure channel to a controller that has answered before."""

    def __init__(self, answers: list[tuple[int, bytes]]) -> None:
        self._answers = answers

    def call(self, interface: str, opnum: int, stub: bytes) -> bytes:
        expected, answer = self._answers.pop(0)
        assert (interface, opnum) == (LSARPC, expected)
        return answer


def test_a_controller_knows_sids_and_names() -> None:
    asked = ControllerNames(Replayed(list(RECORDED)))
    assert asked.of_sids([sid(1104), sid(1118), sid(9999)]) == [
        Known(sid(1104), Use.USER, "CONTOSO", "AzUser01"),
        Known(sid(1118), Use.ALIAS, "CONTOSO", "LocalRes"),
        None,
    ]
    outer = Known(sid(1117), Use.GROUP, "CONTOSO", "Outer")
    assert asked.of_names(["CONTOSO\\Outer", "CONTOSO\\nobody"]) == [outer, None]
    assert asked.of_names(["CONTOSO\\nobody"]) == [None]


def test_malformed_answers_are_no_answers() -> None:
    opnum, answer = RECORDED[0]
    for bad in (
        b"",
        answer[:40],
        answer[:-5],
        answer[:-4] + b"\x22\x00\x00\xc0",
        bytes(16) + b"\1\0\0\xc0",
    ):
        with pytest.raises(NoController):
            ControllerNames(Replayed([(opnum, bad)])).of_sids([sid(1104), sid(1118), sid(9999)])
    with pytest.raises(NoController, match="3 answers to 2"):
        ControllerNames(Replayed([(opnum, answer)])).of_sids([sid(1104), sid(1118)])


class Source:
    """Who knows alice."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.silent = False

    def of_sids(self, sids: Collection[Sid]) -> list[Known | None]:
        self._note(sids)
        return [ALICE if one == ALICE.sid else None for one in sids]

    def of_names(self, names: Collection[str]) -> list[Known | None]:
        self._note(names)
        return [ALICE if name.casefold() == "corp\\alice" else None for name in names]

    def _note(self, what: Collection[object]) -> None:
        if self.silent:
            raise NoController("nobody")
        self.asked += what


def test_answers_are_remembered_and_asked_for_again_when_they_are_old() -> None:
    now = [1000.0]
    source = Source()
    names = Names(source, lambda: now[0])
    for _ in range(3):
        names.ask(names=["CORP\\Alice", "CORP\\nobody"])
    assert source.asked == ["CORP\\Alice", "CORP\\nobody"]
    assert names.by_name("corp\\ALICE") == ALICE == names.by_sid(ALICE.sid)
    now[0] += 61
    assert names.unsure_names(["CORP\\alice", "CORP\\nobody"]) == ["CORP\\nobody"]
    now[0] += 3600
    source.silent = True
    with pytest.raises(NoController):
        names.ask(sids=[ALICE.sid])
    assert names.by_sid(ALICE.sid) == ALICE


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ENTRIES", 10)
    source = Source()
    names = Names(source)
    for rid in range(100):
        names.ask(sids=[sid(rid)])
    assert len(names._by_sid) == 10
    assert not names.unsure_sids([sid(99)]) and names.unsure_sids([sid(0)])
