"""Every capture under pcaps/ against the verdicts that the .toml file beside it states."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from smb3server.lab.pcap.judge import Judge, judge_capture
from tests.lab.captures import CAPTURES, FOLDER
from tools.kernel_lab.judge import capture_complaints, for_tshark, lab_secrets, tshark_complaints

COUNTERS = ("rdma_read_bytes", "rdma_write_bytes", "inline_read_bytes", "inline_write_bytes", "invalidations")


@cache
def capture_of(name: str) -> Judge:
    return judge_capture(str(FOLDER / f"{name}.pcap"), lab_secrets(), record=True)


def expectations(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def test_there_are_captures() -> None:
    assert len(CAPTURES) >= 3


@pytest.mark.parametrize("name", CAPTURES)
def test_description_is_complete(name: str) -> None:
    description = expectations(name)
    assert {"origin", "stack", "shows", "verdict", "session", "tshark"} <= description.keys()


@pytest.mark.parametrize("name", CAPTURES)
def test_verdict(name: str) -> None:
    wanted, capture = expectations(name)["verdict"], capture_of(name)
    assert capture.frames == wanted["frames"]
    assert len(complaints := capture_complaints(capture)) == wanted["problems"], complaints
    assert not any(gap.secret for gap in capture.gaps)
    if "management" in wanted:
        assert [message for _, message in capture.infiniband.management] == wanted["management"]


@pytest.mark.parametrize("name", CAPTURES)
def test_sessions(name: str) -> None:
    wanted, sessions = expectations(name)["session"], capture_of(name).connections
    assert [(s.fabric, s.server[1], len(s.upper)) for s in sessions] == [
        (w["fabric"], w["port"], w["messages"]) for w in wanted
    ]
    for expected, session in zip(wanted, sessions, strict=True):
        if session.wire is not None:
            counted = {counter: getattr(session.counters, counter) for counter in COUNTERS}
            assert counted == {counter: expected.get(counter, 0) for counter in COUNTERS}
            if "crc" in expected:
                assert session.wire.properties["crc"] == expected["crc"]


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("name", CAPTURES)
def test_tshark_agrees(name: str) -> None:
    allowed = expectations(name)["tshark"]["complaints"]
    complaints = tshark_complaints(FOLDER / f"{name}.pcap")
    assert [c for c in complaints if not any(text in c for text in allowed)] == []


def tshark_smb2(path: Path) -> list[tuple[int, bool]]:
    """Command and direction of every SMB2 header that tshark sees."""
    command = ["tshark", "--disable-protocol", "artemis", "-r", str(path), "-Y", "smb2", "-T", "fields"]
    command += ["-e", "smb2.cmd", "-e", "smb2.flags.response"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    headers = []
    for line in output.splitlines():
        commands, responses = line.split("\t")
        for number, response in zip(commands.split(","), responses.split(","), strict=bool(commands)):
            if number:  # an encrypted message has a transform header only
                headers.append((int(number, 0), response in ("1", "True")))
    return headers


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("name", CAPTURES)
def test_tshark_sees_the_same_messages(name: str) -> None:
    """Our reassembly against tshark's: the same SMB2 headers in the same order."""
    ours = [(part.command, part.is_response) for one in capture_of(name).connections for _, part in one.smb2()]
    with for_tshark(FOLDER / f"{name}.pcap") as path:
        assert ours == tshark_smb2(path)
