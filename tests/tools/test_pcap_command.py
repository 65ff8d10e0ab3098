"""The command ``smb3server pcap``: lines, JSON, filters, keys and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smb3server.cli.main import main
from smb3server.lab.pcap import logons
from smb3server.lab.pcap.rules import RULES
from tests.lab.captures import FOLDER
from tests.lab.hostile_captures.all_faults import write

DOCUMENT = FOLDER.parent / "docs" / "captures.md"
SIW, SEAL, RXE = (
    str(FOLDER / f"linux612-{name}.pcap") for name in ("siw-smb3server", "siw-seal-smb3server", "rxe-ksmbd")
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    """The lines that the command prints."""
    assert main(["pcap", *arguments]) == status
    return capsys.readouterr().out.splitlines()


def objects(capsys: pytest.CaptureFixture[str], kind: str, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    """The JSON objects of one type."""
    found = [json.loads(line) for line in printed(capsys, "--json", *arguments, status=status)]
    return [one for one in found if one["type"] == kind]


def test_a_command_is_a_line_with_its_rdma(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, SIW, "--password", "u:pw")
    (line,) = [line for line in lines if " WRITE " in line and "rdma" in line]
    assert line.split()[:2] == ["119", "566"]
    assert line.endswith("5/13/13    300000 rdma (1: 530) d\\a300k")
    assert lines[-1] == f"{SIW}: ok (721 frames, 0 things not judged)"
    assert not any("READ " in line for line in printed(capsys, SIW, "--verdicts") if line[:7].strip().isdigit())


def test_json_joins_reads_to_their_rdma_writes(capsys: pytest.CaptureFixture[str]) -> None:
    reads = objects(capsys, "command", SIW, "--command", "read", "--status", "success", "--file", "*b300K")
    assert [(one["bytes"], one["way"], one["rdma_frames"]) for one in reads] == [
        (131072, "rdma", [661]),
        (131072, "rdma", [666]),
        (37856, "rdma", [668]),
    ]
    assert all(one["share"] == "\\\\10.0.2.2\\share" and one["status_name"] == "STATUS_SUCCESS" for one in reads)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--errors",), 19),
        (("--status", "OBJECT_NAME_NOT_FOUND"), 15),
        (("--status", "0xC0000034", "--status", "STATUS_END_OF_FILE"), 18),
        (("--frames", "711-"), 2),
        (("--frames", "700-712", "--command", "QUERY_INFO"), 2),
        (("--session", "0x1"), 0),
        (("--connection", "2"), 0),
    ],
)
def test_filters(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], count: int) -> None:
    assert len(objects(capsys, "command", SIW, *arguments)) == count


def test_latencies_are_those_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    commands = objects(capsys, "command", SIW, "--command", "CREATE")
    (sums,) = objects(capsys, "latency", SIW, "--command", "CREATE")
    ordered = sorted(one["latency"] for one in commands)
    assert sums["count"] == len(ordered)
    assert sums["max"] == ordered[-1]
    assert sums["p50"] == pytest.approx(ordered[(len(ordered) - 1) // 2], rel=0.06)


def test_verdicts_name_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.pcap"
    write("rdma.range", path)
    (breach,) = objects(capsys, "breach", str(path), status=1)
    verdicts = {one["rule"]: one for one in objects(capsys, "verdict", str(path), status=1)}
    assert set(verdicts) == set(RULES)
    assert verdicts["rdma.range"]["frames"] == [breach["frame"]]
    assert (verdicts["rdma.range"]["verdict"], verdicts["rdma.range"]["by"]) == ("broken", ["server"])
    assert verdicts["rdma.token"]["verdict"] == "kept"
    assert verdicts["ib.icrc"]["verdict"] == "not seen"
    lines = printed(capsys, str(path), status=1)
    assert f"  BROKEN rdma.range by the server: frames {breach['frame']}" in lines
    # What a filter does not choose does not count.
    assert printed(capsys, str(path), "--rule", "smbd.")[-1].startswith(f"{path}: ok")
    assert printed(capsys, str(path), "--rule", "rdma.", status=1)[-1].startswith(f"{path}: FAIL")


def test_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(objects(capsys, "command", SEAL)) == 5
    for arguments in (("--password", "u:pw"), ("--password", "pw")):
        assert len(objects(capsys, "command", SEAL, *arguments)) > 80
    assert any(one["key_would_help"] for one in objects(capsys, "gap", SEAL, "--password", "u:wrong"))
    file = tmp_path / "keys"
    file.write_text("# the lab's user\npassword u:pw\n")
    assert objects(capsys, "gap", SEAL, "--key-file", str(file)) == []


def test_a_session_key_opens_its_session(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[tuple[int, bytes]] = []
    used = logons.Logons._use

    def spy(self: logons.Logons, session: Any, key: bytes, logon: Any) -> Any:
        found.append((session.session_id, key))
        return used(self, session, key, logon)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logons.Logons, "_use", spy)
        assert objects(capsys, "gap", SEAL, "--password", "u:pw") == []
    ((session, key),) = found
    for text in (key.hex(), f"{session:x}:{key.hex()}"):
        assert objects(capsys, "gap", SEAL, "--session-key", text) == []
    wrong = bytes(16).hex()
    assert objects(capsys, "gap", SEAL, "--session-key", wrong)
    assert objects(capsys, "breach", SEAL, "--session-key", f"{session:x}:{wrong}", status=1)


def test_messages_of_the_fabric(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, SIW, "--messages", "--verdicts")
    assert any("RDMA Read Request of 300000 bytes" in line for line in lines)
    assert any("Send of" in line and "invalidating" in line for line in lines)


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "x.pcap"
    write("smb2.message-id", broken)
    other = tmp_path / "y"
    other.write_text("not a capture")
    assert main(["pcap", RXE]) == 0
    assert main(["pcap", RXE, str(broken)]) == 1
    assert main(["pcap", str(broken), str(other), str(tmp_path / "none")]) == 2
    errors = capsys.readouterr().err
    assert "neither pcap nor pcapng" in errors
    assert "No such file" in errors
    for arguments in ([], ["--rule", "no.such"], [RXE, "--session-key", "xyz"], [RXE, "--key-file", str(other)]):
        assert main(["pcap", *arguments]) == 2
    assert "xyz" not in capsys.readouterr().err.rpartition("session key")[2]


def test_all_rules_are_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [line.split()[0] for line in printed(capsys, "--rules")]
    assert listed == list(RULES)
    document = DOCUMENT.read_text()
    assert [rule.id for rule in RULES.values() if f"`{rule.id}`" not in document] == []


def test_fields_of_json_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    document = DOCUMENT.read_text()
    kinds = {}
    for line in printed(capsys, "--json", "--messages", SEAL):
        made = json.loads(line)
        kinds[made["type"]] = made
    assert set(kinds) == {"command", "message", "gap", "connection", "latency", "verdict", "summary"}
    missing = [(kind, name) for kind, made in kinds.items() for name in made if f"`{name}`" not in document]
    assert missing == []


def test_replay_drives_our_own_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, SIW, "--replay", "--verdicts")[-1].startswith(f"{SIW}: ok")
