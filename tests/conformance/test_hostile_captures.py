"""A capture per rule, in which exactly that rule is broken: the judge finds it, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smb3server.lab.pcap.given_secrets import Secrets
from smb3server.lab.pcap.judge import Judge, judge_capture
from smb3server.lab.pcap.rewrite import TcpStream, rewrite
from smb3server.lab.pcap.rules import RULES
from tests.lab.hostile_captures.all_faults import FAULTS, write
from tests.lab.hostile_captures.over_roce import RoceSession
from tools.kernel_lab.judge import lab_secrets, tshark_complaints


def judged(rule: str, folder: Path) -> Judge:
    """The capture that breaks ``rule``, judged."""
    path = folder / "hostile.pcap"
    write(rule, path)
    return judge_capture(str(path), lab_secrets() if FAULTS[rule].password else Secrets())


def test_there_is_a_capture_for_every_rule() -> None:
    assert set(FAULTS) == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_the_judge_finds_exactly_this_rule(rule: str, tmp_path: Path) -> None:
    found = judged(rule, tmp_path)
    assert {(breach.rule.id, breach.by) for breach in found.breaches} == {(rule, FAULTS[rule].by)}, found.breaches
    assert found.connections


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_finds_nothing_wrong_up_to_the_fault(tmp_path: Path) -> None:
    """All captures over TCP in one file, each a connection of its own that ends before its fault."""
    streams = []
    for number, (rule, fault) in enumerate(FAULTS.items()):
        made = fault.make()
        if isinstance(made, RoceSession):
            continue  # Its frames are those of a capture that tshark judges elsewhere.
        first = min(breach.number for breach in judged(rule, tmp_path).breaches)
        stream = made.stream(20000 + number)
        streams.append(TcpStream(stream.client, stream.server, stream.chunks[: max(first - 3, 0)]))
    path = tmp_path / "all.pcap"
    rewrite(streams, path)
    assert len(streams) > 50
    assert tshark_complaints(path) == []
