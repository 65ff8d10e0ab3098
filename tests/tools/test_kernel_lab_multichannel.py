"""Verdicts on the kernel lab's cases with two NICs, on made-up results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.kernel_lab.cases import Case, select
from tools.kernel_lab.judge import judge
from tools.kernel_lab.multichannel import complaints
from tools.kernel_lab.network import ADDRESSES

TCP, MIXED = select(["multichannel-tcp", "multichannel-mixed"])
WHEN = {"before": "", "host-down": ADDRESSES[1], "host-up": "", "guest-down": ADDRESSES[0], "guest-up": ""}


def channel(fabric: str, address: str, session: str, moved: int = 1 << 20) -> dict[str, Any]:
    counters = dict.fromkeys(("rdma_read_bytes", "rdma_write_bytes", "inline_bytes_received", "inline_bytes_sent"), 0)
    return counters | {"fabric": fabric, "local": f"{address}:445", "sessions": [session], "inline_bytes_sent": moved}


def debug_data(missing: str) -> str:
    text = "TCP status: 3 DISCONNECTED\n" if missing else "TCP status: 1\n"
    for address in ADDRESSES:
        text += f"\t1)\tSpeed: 10Gbps\n\t\tCapabilities: None\n\t\tIPv4: {address}\n"
        text += "\t\tAllocated channels: 1\n\t\t[CONNECTED]\n"
    return text


@pytest.fixture(params=[TCP, MIXED], ids=lambda case: case.name)
def passed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Case, Path]:
    """A case and its results as they should be."""
    case: Case = request.param
    fabrics = {"tcp": "0x1"} if case is TCP else {"tcp": "0x1", "iwarp": "0x2"}
    for when, missing in WHEN.items():
        channels = [
            channel(fabric, address, session)
            for fabric, session in fabrics.items()
            for address in ADDRESSES
            if address != missing
        ]
        (tmp_path / f"status-{when}.json").write_text(json.dumps({"channels": channels}))
        (tmp_path / f"debugdata-{when}.txt").write_text(debug_data(missing))
    return case, tmp_path


def change(folder: Path, when: str, channels: list[dict[str, Any]]) -> None:
    path = folder / f"status-{when}.json"
    path.write_text(json.dumps({"channels": json.loads(path.read_text())["channels"] + channels}))


def test_passed(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    assert complaints(case, folder) == []


@pytest.mark.parametrize("when", WHEN)
def test_missing_results(passed: tuple[Case, Path], when: str) -> None:
    case, folder = passed
    (folder / f"status-{when}.json").unlink()
    (folder / f"debugdata-{when}.txt").unlink()
    assert len(complaints(case, folder)) == 2


def test_channel_that_stays_though_its_link_is_cut(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    change(folder, "host-down", [channel("tcp", ADDRESSES[1], "0x1")])
    assert complaints(case, folder) == [
        f"server, host-down: too many or too few: channels on tcp {ADDRESSES[1]}",
    ]


def test_channel_that_does_not_come_back(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    (folder / "status-guest-up.json").write_text((folder / "status-guest-down.json").read_text())
    (folder / "debugdata-guest-up.txt").write_text(debug_data("a link"))
    found = complaints(case, folder)
    assert ADDRESSES[0] in found[0]
    assert found[1:] == ["client, guest-up: a channel is down"]


def test_session_that_was_replaced(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    change(folder, "host-up", [channel("tcp", ADDRESSES[0], "0x99")])
    assert "want one for each of" in complaints(case, folder)[0]


def test_channel_that_is_not_used(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    channels = [channel("tcp", ADDRESSES[0], "0x1"), channel("tcp", ADDRESSES[1], "0x1", moved=1000)]
    if case is MIXED:
        channels += [channel("iwarp", address, "0x2") for address in ADDRESSES]
    (folder / "status-before.json").write_text(json.dumps({"channels": channels}))
    assert "that nothing moves on" in complaints(case, folder)[0]


def test_client_that_stays_on_one_interface(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    text = debug_data("").rpartition("\t\t[CONNECTED]")[0]
    (folder / "debugdata-before.txt").write_text(text)
    assert complaints(case, folder) == [f"client, before: connected to {ADDRESSES[0]}"]


def test_kernel_may_say_that_a_link_was_cut(passed: tuple[Case, Path]) -> None:
    case, folder = passed
    (folder / "status").write_text("0\n")
    (folder / "log.txt").write_text("== [1.0] ok: mnt\n")
    in_use = "" if case is TCP else "SMBDirect (in hex) protocol version: 100\nreceive_credit_max: ff\n"
    (folder / "debugdata.txt").write_text(in_use)
    log = "[ 1.0] CIFS: VFS: \\\\10.77.0.1 has not responded in 3 seconds. Reconnecting...\n"
    (folder / "dmesg.txt").write_text(log + "[ 2.0] CIFS: VFS: RDMA transport re-established\n")
    assert judge(case, folder, counted=True) == []
    (folder / "dmesg.txt").write_text("[ 3.0] BUG: kernel NULL pointer dereference\n")
    assert len(judge(case, folder, counted=True)) == 1
