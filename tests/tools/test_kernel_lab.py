"""The kernel lab's verdicts, on made-up results: what must fail a case, and what must not. Booting is not done here."""

from __future__ import annotations

import json
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from smb3server.lab.pcap.judge import Judge
from smb3server.lab.pcap.rules import SMBD_LAST
from smb3server.lab.pcap.verdicts import Breach, Gap
from tools.flaky import record
from tools.kernel_lab import __main__ as lab
from tools.kernel_lab import judge as judge_module
from tools.kernel_lab.cases import CASES, Case, select
from tools.kernel_lab.judge import judge, met_client_defect, server_complaints, tshark_complaints, tshark_experts
from tools.kernel_lab.server import log_complaints

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tools" / "kernel_lab"
DEBUG_DATA = "SMBDirect (in hex) protocol version: 100 transport status: 2\nConn receive_credit_max: ff send: ff\n"
SESSION_BYTES = 300_000
"""What the client of the capture reads and writes at once."""
SIW = next(case for case in CASES if case.name == "siw")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of a passed ``siw`` case."""
    monkeypatch.setattr(judge_module, "tshark_complaints", lambda path: [])
    monkeypatch.setattr(judge_module.shutil, "which", lambda name: name)
    (tmp_path / "status").write_text("0\n")
    (tmp_path / "log.txt").write_text("== [1.0] ok: mnt\n== [2.0] ok: umount /mnt\n")
    (tmp_path / "dmesg.txt").write_text(
        "[   10.5] CIFS: VFS: RDMA transport established\n"
        "[   35.2] CIFS: VFS: smbd_post_recv:1076 ib_post_recv failed rc=-107\n"
    )
    (tmp_path / "debugdata.txt").write_text(DEBUG_DATA)
    (tmp_path / "mount.txt").write_text("//h/share /mnt cifs rw,rdma,rsize=1048576,wsize=1048576,bsize=1048576 0 0\n")
    monkeypatch.setattr(judge_module, "LARGEST_REQUEST", SESSION_BYTES)
    shutil.copy(ROOT / "pcaps" / "linux612-siw-ksmbd-mtu1500.pcap", tmp_path / "session.pcap")
    return tmp_path


def test_passed_case(folder: Path) -> None:
    assert judge(SIW, folder) == []


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("log.txt", "== [1.0] FAIL(32): cmp /tmp/a /tmp/b\n", "FAIL(32): cmp"),
        ("dmesg.txt", "[ 1.0] WARNING: CPU: 0 PID: 1 at fs/smb/client/smbdirect.c:1", "WARNING"),
        ("dmesg.txt", "[ 1.0] BUG: unable to handle page fault", "BUG"),
        ("dmesg.txt", "[ 1.0] CIFS: VFS: \\\\10.0.2.2 has not responded in 180 seconds", "has not responded"),
        ("dmesg.txt", "[ 1.0] CIFS: VFS: RDMA transport re-established", "re-established"),
        ("dmesg.txt", "[ 1.0] CIFS: VFS: sign fail cmd 0x8 message id 0x4f", "sign fail"),
        ("debugdata.txt", "Number of credits: 8190,1,1 Dialect 0x311 posix\n", "SMB Direct is not in use"),
        ("debugdata.txt", DEBUG_DATA.replace("ff", "10"), "receive_credit_max is not 255"),
        ("status", "124\n", "cut off: exit status 124"),
        ("session.pcap", "nothing", "neither pcap nor pcapng"),
    ],
)
def test_what_fails_a_case(folder: Path, name: str, content: str, complaint: str) -> None:
    (folder / name).write_text(content)
    complaints = judge(SIW, folder)
    assert len(complaints) == 1
    assert complaint in complaints[0]


@pytest.mark.parametrize("name", ["status", "debugdata.txt", "session.pcap"])
def test_missing_result_fails_a_case(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert len(judge(SIW, folder)) == 1


def test_rdma_transfers_are_wanted_or_not(folder: Path) -> None:
    signed = Case("siw-sign", "siw", "sign")
    assert "though the client signs or encrypts" in judge(signed, folder)[0]
    over_tcp = Case("tcp", "tcp")
    (folder / "debugdata.txt").write_text("Number of credits: 8190\n")
    assert judge(over_tcp, folder) == ["capture: no session over tcp"]


def test_rules_that_the_client_breaks_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    judged = Judge()
    judged.breaches += [Breach(7, SMBD_LAST, 1, by, f"a fault of the {by}") for by in ("client", "server")]
    judged.gaps.append(Gap(9, 1, "frames are missing"))
    found = server_complaints(judged)
    assert len(found) == 2 and "fault of the server" in found[0] and "missing" in found[1]
    assert "noted: frame 7: a fault of the client" in capsys.readouterr().out


def test_selection() -> None:
    assert select([]) == list(CASES)
    assert [case.name for case in select(["tcp", "siw"])] == ["tcp", "siw"]
    with pytest.raises(ValueError, match="no case bogus"):
        select(["tcp", "bogus"])
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.argument.count(":") >= 5 for case in CASES)


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_complaints_and_exclusions() -> None:
    capture = ROOT / "pcaps" / "linux612-siw-ksmbd-mtu1500.pcap"
    assert sorted({expert.protocol for expert in tshark_experts(capture)}) == ["SPNEGO", "TCP"]
    assert tshark_complaints(capture) == []


def test_server_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ready 127.0.0.1:445\n")
    assert log_complaints(log) == []
    log.write_text('ready\nTraceback (most recent call last):\n  File "x", line 1\n    boom()\nValueError: no\nmore\n')
    assert log_complaints(log) == ["server log line 2: Traceback (most recent call last): ValueError: no"]


@pytest.mark.parametrize("script", [*sorted(LAB.rglob("*.sh")), LAB / "init", ROOT / "tools" / "setup.sh"])
def test_scripts_parse(script: Path) -> None:
    shell = "bash" if script.read_text().startswith("#!/bin/bash") else "sh"
    subprocess.run([shell, "-n", str(script)], check=True)


VERBS = next(case for case in CASES if case.name == "verbs-rxe")


def report(registrations: int, moved: int, code: str = "used") -> str:
    channel = {"fabric": "verbs", "registrations": registrations, "allocations": 3, "rdma": {"code": code, "text": "?"}}
    return json.dumps({"channels": [channel | {"rdma_read_bytes": moved, "rdma_write_bytes": moved}]})


def test_verbs_case(folder: Path) -> None:
    (folder / "server.log").write_text("ready\n")
    (folder / "warm.json").write_text(report(5, 0))
    (folder / "steady.json").write_text(report(5, 8 << 20))
    (folder / "session.pcap").unlink()
    assert judge(VERBS, folder) == []
    (folder / "steady.json").write_text(report(6, 8 << 20))
    assert judge(VERBS, folder) == ["registrations grew from 5 to 6 in steady state"]
    (folder / "steady.json").write_text(report(5, 8 << 20, "signed"))
    assert judge(VERBS, folder) == ["the server says: verbs, ?"]
    (folder / "steady.json").write_text(report(5, 100))
    assert len(judge(VERBS, folder)) == 2
    (folder / "server.log").write_text("Traceback (most recent call last)\n  File\nKeyError: 1\n")
    assert len(judge(VERBS, folder)) == 3
    (folder / "steady.json").unlink()
    assert any("status of the server" in complaint for complaint in judge(VERBS, folder))


def counted(folder: Path, read: int, written: int, invalidations: int, messages: int = 5_000_000) -> None:
    """The server's counters, beside those of a client that read 4 MB and wrote 3 MB in 110 requests."""
    channel = {
        "rdma_read_bytes": read,
        "rdma_write_bytes": written,
        "inline_bytes_received": messages,
        "inline_bytes_sent": messages,
        "smb_direct": {"remote_invalidations_sent": invalidations},
        "rdma": {"code": "used", "text": ""},
    }
    (folder / "status.json").write_text(json.dumps({"channels": [channel]}))
    (folder / "stats.txt").write_text(
        "1) \\\\10.0.2.2\\share\nBytes read: 4000000  Bytes written: 3000000\n"
        "Reads: 60 total 0 failed\nWrites: 50 total 0 failed\n"
    )


def test_counters_of_both_sides(folder: Path) -> None:
    assert judge(SIW, folder, counted=True)[0].startswith("status of the server: ")
    counted(folder, 3_000_000 - 40, 4_000_000, 100)
    assert judge(SIW, folder, counted=True) == []
    for read, written, invalidations in (
        (3_000_001, 4_000_000, 100),
        (3_000_000, 3_900_000, 100),
        (3_000_000, 4_000_000, 111),
    ):
        counted(folder, read, written, invalidations)
        assert len(judge(SIW, folder, counted=True)) == 1
    without = SIW._replace(invalidation=False)
    assert "counters: invalidations: 111 at the server, 0 at the client" in judge(without, folder, counted=True)
    signed = Case("siw-sign", "siw", "sign")
    counted(folder, 0, 0, 0)
    assert not any("counters" in complaint for complaint in judge(signed, folder, counted=True))
    counted(folder, 4096, 0, 0, 2_000_000)
    assert sum("counters" in complaint for complaint in judge(signed, folder, counted=True)) == 3


@pytest.mark.parametrize(
    ("mounted", "largest", "complaint"),
    [
        ("rsize=131072,wsize=1048576", 300_000, "the client reads 131072 bytes at once"),
        ("rsize=1048576,wsize=131072", 300_000, "the longest WRITE is of 300000 bytes; 131072 are mounted"),
        ("rsize=1048576,wsize=1048576", 400_000, "the longest READ is of 300000 bytes; 400000 are mounted"),
        ("rw", 300_000, "does not say its rsize"),
    ],
)
def test_requests_are_as_long_as_they_can_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mounted: str, largest: int, complaint: str
) -> None:
    counted(folder, 3_000_000 - 40, 4_000_000, 100)
    monkeypatch.setattr(judge_module, "LARGEST_REQUEST", largest)
    (folder / "mount.txt").write_text(f"//h/share /mnt cifs {mounted} 0 0\n")
    complaints = judge(SIW, folder, counted=True)
    assert complaints and complaint in " ".join(complaints)


def test_known_defect_of_the_client(folder: Path) -> None:
    rxe = next(case for case in CASES if case.name == "rxe")
    assert not met_client_defect(rxe, folder)
    (folder / "dmesg.txt").write_text("[ 1.0] failed to drain recv queue: -12\n")
    assert met_client_defect(rxe, folder)
    assert not met_client_defect(SIW, folder)


def test_what_our_sender_avoids_excuses_no_case(folder: Path) -> None:
    (folder / "dmesg.txt").write_text("[ 1.0] CIFS: VFS: sign fail cmd 0x8 message id 0x4f\n")
    (folder / "console.log").write_text("[ 3.0] RIP: 0010:siw_tcp_rx_data+0x328/0x8a0 [siw]\n")
    assert not any(met_client_defect(case, folder) for case in CASES if case.name.startswith("siw"))


def test_guest_that_died_of_the_defect(folder: Path) -> None:
    rxe = next(case for case in CASES if case.name == "rxe")
    (folder / "status").unlink()
    assert "did not run" in judge(rxe, folder)[0]
    (folder / "console.log").write_text("[ 1.0] fine\n[ 2.0] failed to drain recv queue: -12\n[ 3.0] Kernel panic\n")
    assert met_client_defect(rxe, folder)
    assert judge(rxe, folder)[0] == "the guest died in it: [ 3.0] Kernel panic"


@pytest.mark.parametrize(
    ("complaint", "line", "retries", "runs"),
    [
        ("bad", "drain", 0, 4),
        ("bad", "other", 0, 1),
        ("bad", "other", 2, 3),
        ("", "drain", 1, 1),
        # Data that differ without an error are no matter of a busy machine.
        ("FAIL(100): same /tmp/bulk /tmp/back", "drain", 2, 1),
        ("FAIL(100): t reads", "other", 2, 1),
        ("FAIL(1): t reads", "other", 2, 3),
    ],
)
def test_failed_case_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, line: str, retries: int, runs: int
) -> None:
    case = next(case for case in CASES if case.client_defect)._replace(client_defect="drain")
    logs: list[Path] = []

    def attempt(cases: list[Case], out: Path, log: Path, options: Namespace) -> list[str]:
        logs.append(log)
        (out / cases[0].name).mkdir()
        (out / cases[0].name / "dmesg.txt").write_text(line)
        return ["the server died"]

    monkeypatch.setattr(lab, "attempt", attempt)
    monkeypatch.setattr(lab, "verdict", lambda *_: [complaint] if complaint else [])
    options = Namespace(retries=retries)
    attempt([case], tmp_path, tmp_path / "first.log", options)
    assert lab.again(case, tmp_path, options) == ["the server died"] * (runs - 1)
    assert len(set(logs)) == len(logs) == runs, "each with a server of its own"
    assert (tmp_path / case.name).is_dir()
    assert len(list(tmp_path.glob(f"{case.name}-*"))) == runs - 1, "what failed is kept"


@pytest.mark.parametrize(
    ("verdicts", "line", "recorded"),
    [
        ([[]], "", []),
        ([["bad"], []], "", ["failed", "passed"]),
        ([["bad"], ["worse"], ["worse"]], "", ["failed", "failed", "failed"]),
        ([["bad"]] * 4, "drain", ["failed"] * 4 + ["skipped"]),
    ],
)
def test_what_passes_only_when_repeated_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdicts: list[list[str]], line: str, recorded: list[str]
) -> None:
    case = next(case for case in CASES if case.client_defect)._replace(client_defect="drain")
    waiting = iter(verdicts)

    def attempt(cases: list[Case], out: Path, *_: object) -> list[str]:
        (out / cases[0].name).mkdir()
        (out / cases[0].name / "dmesg.txt").write_text(line)
        return []

    monkeypatch.setattr(lab, "attempt", attempt)
    monkeypatch.setattr(lab, "verdict", lambda *_: next(waiting))
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "results"))
    attempt([case], tmp_path)
    lab.again(case, tmp_path, Namespace(retries=2))
    entries, _ = record.read(tmp_path / "results")
    assert [entry.result for entry in entries] == recorded
    assert all(entry.name == case.name for entry in entries)
    assert not entries or entries[0].text == "bad"


PORT = next(case for case in CASES if case.name == "verbs-port-rxe")
REASON = "port 1 of r_rxe is down"


def port_files(folder: Path, name: str, up: bool) -> None:
    choices = [
        {"fabric": "verbs", "served": up, "reason": "r_rxe on eth0" if up else REASON},
        {"fabric": "iwarp", "served": True, "reason": "in user space"},
    ]
    channels = [{"fabric": "tcp"}, {"fabric": "verbs"}] if up else [{"fabric": "tcp"}]
    addresses = [{"address": "10.0.2.15", "rdma": True}] if up else []
    state = "active" if up else "port 1 is down"
    documents = {
        "status": {"server": {"rdma_choices": choices}, "channels": channels},
        "client": {"interfaces": addresses},
        "host": {"findings": [{"subject": "r_rxe", "text": f"RoCE, on eth0: {state}"}]},
    }
    for kind, document in documents.items():
        (folder / f"{name}-{kind}.json").write_text(json.dumps(document))


def test_port_case(folder: Path) -> None:
    for name in ("up", "down", "back"):
        port_files(folder, name, name != "down")
    log = folder / "server.log"
    log.write_text(f"10.0.2.15: connection lost: device or network failure: {REASON}\n")
    assert judge(PORT, folder) == []
    for name in ("up", "down", "back"):
        port_files(folder, name, name == "down")
        assert len(judge(PORT, folder)) == 3 + (name != "back"), "every place where the state is told"
        port_files(folder, name, name != "down")
    log.write_text("connection lost: something else\n")
    assert judge(PORT, folder) == ["the server's log does not say why the connection ended"]
    (folder / "down-host.json").unlink()
    assert [text.split()[0] for text in judge(PORT, folder)] == ["port:"]


def test_selfcheck_case(folder: Path) -> None:
    case = next(case for case in CASES if case.name == "verbs-check-siw")

    def complaints(**changes: object) -> list[str]:
        good = {"device": "r_siw", "address": "10.0.2.15", "verdicts": {"a": "ok"}, "passed": True, "error": ""}
        (folder / "selfcheck.json").write_text(json.dumps([good | changes]))
        return judge(case, folder)

    assert complaints() == []
    assert complaints(verdicts={"a": "ok", "b": "FAILED: x"}, passed=False) == ["b: FAILED: x"]
    assert complaints(verdicts={}, passed=False, error="no device") == ["not passed: no device"]
    assert complaints(device="r_rxe") == ["checked r_rxe at 10.0.2.15"]
    (folder / "selfcheck.json").write_text("[]")
    assert len(judge(case, folder)) == 1


def test_connections_lost_on_purpose(folder: Path) -> None:
    (folder / "dmesg.txt").write_text("[ 1.0] CIFS: VFS: RDMA transport re-established\n")
    assert judge(SIW._replace(reconnects=True), folder) == []
    (folder / "dmesg.txt").write_text("[ 1.0] WARNING: CPU: 0 PID: 1\n")
    assert len(judge(SIW._replace(reconnects=True), folder)) == 1
