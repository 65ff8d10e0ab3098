"""The targets of the guided fuzzer: their seeds and what was once found pass, and what must not be is found."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.wire.negotiate import Dialect
from tools.fuzz import framed, in_memory, target
from tools.fuzz.minimise import minimise
from tools.fuzz.target import Finding, Target
from tools.fuzz.targets import load, names, rpc_calls, server_connections

REGRESSIONS = Path(__file__).parent / "regressions"
"""Inputs that showed a fault once, by target. Their names say which."""
MOST_SEEDS = 60


@pytest.fixture(autouse=True)
def judging() -> Iterator[None]:
    """The judge takes the handlers of the root logger."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    target.prepare()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("name", names())
def test_seeds_and_regressions_show_nothing(name: str) -> None:
    subject = load(name)
    seeds = list(subject.seeds())
    assert seeds
    for data in seeds[:: max(1, len(seeds) // MOST_SEEDS)]:
        target.judge(subject, data[: subject.max_input])
    for path in sorted((REGRESSIONS / name).glob("*")):
        target.judge(subject, path.read_bytes())


def test_every_regression_has_its_target() -> None:
    assert {path.name for path in REGRESSIONS.iterdir()} <= set(names())


def _allocates(data: bytes) -> None:
    bytearray(1 << 30)


def _loops(data: bytes) -> None:
    while True:
        pass


def _logs(data: bytes) -> None:
    logging.getLogger("somewhere").error("what nobody expects")


def _raises(data: bytes) -> None:
    raise KeyError(data)


@pytest.mark.parametrize(
    ("run", "kind"),
    [(_allocates, "too much memory"), (_loops, "too slow"), (_logs, "logged error"), (_raises, "KeyError")],
)
def test_what_must_not_be_is_found(run: Callable[[bytes], None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "SLOWEST", 0.05)
    with pytest.raises(Finding) as caught:
        target.judge(Target(run, lambda: [b""]), b"x")
    assert caught.value.kind == kind


def test_declared_errors_are_no_findings() -> None:
    target.judge(Target(_raises, lambda: [b""], declared=(KeyError,)), b"x")


@pytest.mark.parametrize("rdma", [False, True])
def test_a_reply_with_what_a_buffer_held_before_is_found(rdma: bool) -> None:
    """As it would be if the server sent a buffer that it has not filled."""

    def leak(data: bytes) -> None:
        with in_memory.world() as made:
            made.loop.run_until_complete(made.client(in_memory.USER, (Dialect.SMB_3_1_1,), rdma))
            made.soil()
            (connection,) = made.server.connection_list
            lent = made.server.buffers.acquire(4096)
            connection.transport.send([bytes(64), lent.view[100:200]], None, lent.release)
            made.loop.pass_time(0.1)

    with pytest.raises(Finding, match="held before"):
        target.judge(Target(leak, lambda: [b""]), b"x")


@pytest.mark.parametrize("mode", [0, server_connections.ENCRYPTED, server_connections.RDMA])
def test_scripts_are_answered(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds get further than the first checks."""
    statuses: Counter[int] = Counter()
    note = server_connections.note_opens

    def count(client: in_memory.RawClient) -> None:
        statuses.update(int.from_bytes(reply[8:12], "little") for reply in client.replies)
        note(client)

    monkeypatch.setattr(server_connections, "note_opens", count)
    subject = load("server_connections")
    for data in [data for data in subject.seeds() if data[0] == mode][:40]:
        target.judge(subject, data)
    assert statuses[0] > 60
    assert len(statuses) > 5


def test_answers_of_rpc_operations_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those given at once, and those that take their time."""
    monkeypatch.setattr(rpc_calls, "MOST_OUTPUT", 0)
    kinds = set()
    for data in rpc_calls.TARGET.seeds():
        try:
            target.judge(rpc_calls.TARGET, data)
        except Finding as finding:
            kinds.add(finding.kind)
    assert kinds == {"Wrong", "logged Wrong"}


def test_inputs_become_as_small_as_they_can() -> None:
    data = bytes(range(1, 200)) + b"needle" + bytes(range(1, 100))
    assert minimise(data, lambda candidate: b"needle" in candidate) == b"needle"
    assert minimise(data, lambda candidate: len(candidate) == len(data)) == bytes(len(data))


def test_framed_inputs_keep_their_frames() -> None:
    messages = [b"first", b"", b"third" * 100]
    assert framed.split(framed.join(messages)) == messages
    assert framed.split(b"\xff\xffshort") == [b"short"]
    assert len(framed.split(bytes(1000))) == framed.MOST


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel here")
def test_a_campaign_runs_and_reports(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.fuzz.campaign", "--seconds", "1", "--targets", "mpa_frames"]
    ended = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "nothing found" in ended.stdout
    assert len(list((tmp_path / "corpus" / "mpa_frames").iterdir())) > 10
