"""The damages of captures: the judge finds each under the rules that are declared, and the tool tells what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smb3server.lab.pcap.rules import RULES
from tools.mutants import captures
from tools.mutants.captures import Damage, DamageError, main, read, try_one

DAMAGES = {damage.name: damage for damage in read()}
FOUND, SURVIVES = DAMAGES["create-response-action"], DAMAGES["create-response-reserved2"]
ADDED = frozenset(
    (
        *("rdmap.invalidate-stag", "smbd.credits-granted", "smbd.reserved", "smbd.padding", "smb2.value"),
        *("smb2.reserved", "smb2.entries", "smb2.negotiate-contexts", "smb2.response-ids", "smb2.response-charge"),
        *("smb2.credits-granted", "smb2.file-id", "smb2.write-count"),
    )
)


def declared(folder: Path, *damages: Damage) -> Path:
    """A file that declares damages."""
    path = folder / "captures.toml"
    with path.open("w") as file:
        for one in damages:
            file.write(f'[["{one.about}"]]\n')
            for name in ("name", "capture", "command", "sent", "breaks", "layer", "reason"):
                file.write(f'{name} = "{getattr(one, name)}"\n')
            file.write(f"at = {one.at}\nwrite = {list(one.write)}\nrules = {list(one.rules)}\nnth = {one.nth}\n")
    return path


def test_every_damage_is_found_as_declared_and_the_table_says_so() -> None:
    tried = [try_one(damage) for damage in DAMAGES.values()]
    assert [(one.damage.name, sorted(one.found)) for one in tried if not one.right] == []
    assert captures.TABLE.read_text() == captures.table(tried), "python -m tools.mutants.captures --update"


def test_rules_about_single_fields_have_damages() -> None:
    assert set(RULES) >= ADDED
    assert {damage.rules[0] for damage in DAMAGES.values() if damage.rules} >= ADDED


def test_sections_are_named() -> None:
    assert [name for name, damage in DAMAGES.items() if not damage.breaks.endswith("]")] == []


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], declared(tmp_path, FOUND, SURVIVES)) == 0
    assert "2 damages: 1 found, 1 survived" in capsys.readouterr().out
    for wrong in (
        replace(FOUND, rules=("smb2.entries",)),
        replace(FOUND, rules=("smb2.value", "smb2.entries")),
        replace(FOUND, rules=(), reason="nobody looks"),
        replace(SURVIVES, rules=("smb2.reserved",), reason=""),
    ):
        assert main([], declared(tmp_path, wrong)) == 1
        assert "WRONG" in capsys.readouterr().out
    for useless in (
        replace(FOUND, nth=1000),
        replace(FOUND, capture="none"),
        replace(FOUND, command="DELETE"),
        replace(FOUND, at=100_000),
        replace(FOUND, write=("<I", 1)),  # A good CreateAction: that of the capture.
        replace(FOUND, rules=()),
        replace(FOUND, rules=("no.rule",)),
    ):
        assert main([], declared(tmp_path, useless)) == 2
        assert capsys.readouterr().err.startswith("captures: ")
    assert main(["no-such-damage"]) == 2
    assert main([FOUND.name, "--update"]) == 2


def test_a_bad_capture_is_no_ground_for_damages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "judged", lambda frames: frozenset(("smb2.value",)))
    captures.frames_of.cache_clear()
    with pytest.raises(DamageError, match="no good capture"):
        captures.frames_of(FOUND.capture)


def test_names_are_declared_once(tmp_path: Path) -> None:
    with pytest.raises(DamageError, match="twice"):
        read(declared(tmp_path, FOUND, FOUND))
