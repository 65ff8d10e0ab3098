"""Kernel lab cases in which the server fails: what the host does and measures, and verdicts on made-up results."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from tools.kernel_lab import persist_judge
from tools.kernel_lab.cases import CASES, Case
from tools.kernel_lab.persist import Failing, describe
from tools.kernel_lab.persist_judge import RECONNECTED, judge_failure
from tools.kernel_lab.server import ServerError

BLOCK = bytes(4096)
KILLED = next(case for case in CASES if case.name == "persist-restart")
CUT = next(case for case in CASES if case.name == "persist-cut")
CLOCK = next(case for case in CASES if case.name == "clock-step")


class Pretended(Failing):
    """A server whose client writes a block whenever it may."""

    def __init__(self, share: Path, recovers: bool = True) -> None:
        self.share = share
        self.done: list[str] = []
        self.recovers = recovers

    @property
    def alive(self) -> bool:
        return True

    def write(self) -> None:
        with (self.share / "f").open("ab") as file:
            file.write(BLOCK)

    def fail(self, how: str) -> None:
        self.done.append(f"fail {how}")

    def recover(self, how: str) -> dict[str, float]:
        self.done.append("recover")
        if not self.recovers:
            raise ServerError("it does not start")
        threading.Timer(0.2, self.write).start()
        return {"ready after": 0.1}

    def settle(self, how: str) -> None:
        self.done.append("settle")

    def report(self, path: Path) -> None:
        path.write_text("{}")

    def stop(self) -> None:
        self.done.append("stop")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for name in ("share", "out", "out/case"):
        (tmp_path / name).mkdir()
    return tmp_path / "out"


def ask(server: Failing, out: Path, what: str, words: str) -> str:
    """As the guest does it; what went wrong."""
    wish = out / "case" / f"ask-{what}"
    wish.write_text(words)
    waiting = threading.Event()
    with server.answering(out):
        while wish.exists():
            waiting.wait(0.01)
    failed = out / "case" / f"failed-{what}"
    return failed.read_text() if failed.exists() else ""


def test_failure_is_timed(out: Path) -> None:
    server = Pretended(out.parent / "share")
    for _ in range(4):
        server.write()
    assert ask(server, out, "fail", "kill 8192 f") == ""
    assert server.done == ["fail kill", "recover", "settle"]
    assert (out / "case" / "happened").exists()
    found = json.loads((out / "case" / "failure.json").read_text())
    assert found["how"] == "kill" and found["ready after"] == 0.1
    assert 0 < found["stood still for"] <= found["resumed"]
    assert describe(found).startswith(f"the copy went on {found['resumed']} s after the kill, ready after 0.1 s")


def test_what_the_guest_cannot_have(out: Path) -> None:
    server = Pretended(out.parent / "share", recovers=False)
    server.write()
    threading.Timer(0.3, server.write).start()
    assert "it does not start" in ask(server, out, "fail", "kill 4096 f")
    assert "settle" not in server.done
    assert "fail" in ask(server, out, "fail", "kill")
    assert "nonsense" in ask(server, out, "nonsense", "")


def test_status(out: Path) -> None:
    server = Pretended(out.parent / "share")
    server.write()
    assert ask(server, out, "status", "") == ""
    assert json.loads((out / "case" / "names.json").read_text()) == ["f"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of a passed case."""
    monkeypatch.setattr(persist_judge, "_capture", lambda path, wanted: [])
    (tmp_path / "status").write_text("0\n")
    (tmp_path / "log.txt").write_text("== [1.0] ok: mnt /mnt\n")
    (tmp_path / "dmesg.txt").write_text(
        "[ 1.0] CIFS: VFS: \\\\10.0.2.2 has not responded in 3 seconds. Reconnecting...\n"
    )
    (tmp_path / "debugdata.txt").write_text("Number of credits: 8190,1,1 Dialect 0x311\n")
    (tmp_path / "failure.json").write_text('{"how": "kill", "resumed": 3.0}')
    (tmp_path / "noticed").write_text("4.2\n")
    (tmp_path / "names.json").write_text('["copied", "direct", "gone", "held"]')
    store(tmp_path, len(RECONNECTED), len(RECONNECTED))
    return tmp_path


def store(folder: Path, restored: int, reconnected: int, kind: str = "persistent", expired: int = 0) -> None:
    opens = [{"path": name, "durable": kind} for name in ("cached", "gone", "held")]
    handles = {"restored": restored, "reconnected": reconnected, "expired": expired}
    report = {"server": {"handles": handles}, "sessions": [{"opens": opens}]}
    (folder / "status.json").write_text(json.dumps(report))


@pytest.mark.parametrize("case", [KILLED, CUT, CLOCK], ids=lambda case: case.name)
def test_passed_case(folder: Path, case: Case) -> None:
    assert judge_failure(case, folder) == []


def test_who_waits_must_notice(folder: Path) -> None:
    (folder / "noticed").write_text("117.0\n")
    assert judge_failure(KILLED, folder) == ["the client that waits noticed after 117.0 s"]
    assert judge_failure(KILLED, folder, told=False) == []
    (folder / "noticed").unlink()
    assert len(judge_failure(KILLED, folder)) == 1


def test_opens_must_be_those_of_before(folder: Path) -> None:
    store(folder, 5, 4)
    assert judge_failure(KILLED, folder) == ["server: 4 opens reconnected, want 5"]
    # Where the node serves on for a while, cp may be done.
    assert judge_failure(CUT, folder) == []
    store(folder, 0, 5)
    assert judge_failure(KILLED, folder) == ["server: 0 opens restored, want 5"]
    store(folder, 5, 5, kind="durable")
    assert len(judge_failure(KILLED, folder)) == 3
    store(folder, 3, 3, expired=1)
    assert len(judge_failure(CLOCK, folder)) == 1


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("names.json", '["copied", "direct", "held"]', "still open was deleted"),
        ("failure.json", "", "the server's failure"),
        ("dmesg.txt", "[ 1.0] WARNING: CPU: 0 PID: 1 at fs/smb/client/connect.c:1", "WARNING"),
        ("dmesg.txt", "[ 1.0] CIFS: VFS: sign fail cmd 0x9", "sign fail"),
        ("log.txt", "== [1.0] FAIL(1): cmp -s /tmp/bulk /mnt/copied\n", "FAIL(1): cmp"),
        ("debugdata.txt", "SMBDirect (in hex) protocol version: 100\n", "SMB Direct is in use"),
    ],
)
def test_what_fails_a_case(folder: Path, name: str, content: str, complaint: str) -> None:
    if name == "log.txt":
        (folder / "status").write_text("1\n")
    (folder / name).write_text(content)
    (found,) = judge_failure(KILLED, folder)
    assert complaint in found


def test_capture_must_show_every_reconnect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcap = Path(__file__).resolve().parents[2] / "pcaps" / "linux612-siw-ksmbd-mtu1500.pcap"
    monkeypatch.setattr(persist_judge, "tshark_complaints", lambda path: [])
    monkeypatch.setattr(persist_judge, "_fields", lambda *_: [])
    found = persist_judge._capture(pcap, frozenset(["held"]))
    assert found == ["tshark: no successful DURABLE_HANDLE_RECONNECT_V2 of held"]
    assert persist_judge._capture(tmp_path / "none", frozenset()) == ["no capture"]


def test_responses_of_several_requests_in_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["3528,3527", "0x00000000,0x00000000"], ["12", "0xc0000034"], ["13", ""]]
    asked = [["3528", "gone"], ["12", "held"], ["13", "cached"]]
    monkeypatch.setattr(persist_judge, "_fields", lambda path, chosen, names: asked if "DH2C" in chosen else answers)
    monkeypatch.setattr(persist_judge, "for_tshark", contextlib.nullcontext)
    assert persist_judge.reconnects(Path("x")) == {"gone"}
