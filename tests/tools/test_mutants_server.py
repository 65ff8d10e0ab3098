"""The mutants of the server fit the code, and the tool that tries them finds and does not find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from smb3server.lab.bench.page import BEGIN, END
from tools.mutants import declared, server
from tools.mutants.declared import MutantError
from tools.mutants.server import Tried, main, try_one

MUTANTS = {mutant.name: mutant for mutant in declared.read()}
KILLED = MUTANTS["negotiation-failure-fields"]
LIMIT = 900


def as_declared() -> list[Tried]:
    return [Tried(mutant, tuple(sorted(mutant.killers)), "") for mutant in MUTANTS.values()]


def test_every_mutant_fits_the_code() -> None:
    for mutant in MUTANTS.values():
        declared.mutated(mutant)
        assert mutant.breaks.endswith("]") and "[MS-" in mutant.breaks, mutant.name


def test_the_table_and_the_page_are_those_of_the_declarations() -> None:
    assert server.TABLE.read_text() == server.table(as_declared()), "python -m tools.mutants.server --update"
    part = server.PAGE.read_text().partition(BEGIN.format(server.MARKS))[2].partition(END.format(server.MARKS))[0]
    assert part.strip() == server.summary(as_declared())


@pytest.mark.parametrize(
    "change",
    [
        {"text": "no such text"},
        {"text": "self"},
        {"replacement": KILLED.text},
        {"replacement": "("},
    ],
    ids=["moved", "several times", "unchanged", "no Python"],
)
def test_a_mutant_that_does_not_fit_is_an_error(
    change: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "read", lambda: [replace(KILLED, **change)])  # type: ignore[arg-type]
    assert main([]) == 2
    assert "ERROR     negotiation-failure-fields" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '[[credits]]\nname = "a"',
        "no TOML",
        '[[credits]]\nname="a"\nfile="f"\ntext="t"\nreplacement="r"\nbreaks="b"\ncases=["NoSuchCase"]',
        '[[credits]]\nname="a"\nfile="f"\ntext="t"\nreplacement="r"\nbreaks="b"',
        2 * '[[credits]]\nname="a"\nfile="f"\ntext="t"\nreplacement="r"\nbreaks="b"\nreason="r"\n',
    ],
    ids=["fields are missing", "no TOML", "unknown case", "no reason", "twice"],
)
def test_a_wrong_declaration_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(MutantError):
        declared.read(path)


def test_patterns_choose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "credits-*"]) == 0
    assert "credits-target-kept" in (shown := capsys.readouterr().out) and "read-count" not in shown
    assert main(["no-such-*"]) == 2


def test_a_mutant_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([KILLED.name]) == 0
    assert "killed    negotiation-failure-fields: Negotiate_FailureFieldsAreZero" in capsys.readouterr().out


def test_a_mutant_that_its_case_does_not_find_has_survived(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = replace(KILLED, cases=["Negotiate_VersionRangeInverted"])
    monkeypatch.setattr(server, "read", lambda: [blind])
    assert main([]) == 1
    assert "survived: Negotiate_VersionRangeInverted did not find it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "replacement", "complaint"),
    [
        ("self._check_sizes(request", "raise ValueError; (request", "is broken altogether"),
        ("_DATA_FIELDS = DATA", "_DATA_FIELDS = NO_SUCH", "the judge has ended with 1"),
    ],
    ids=["every connection", "import"],
)
def test_a_server_that_is_broken_altogether_is_no_mutant(text: str, replacement: str, complaint: str) -> None:
    with pytest.raises(MutantError, match=complaint):
        try_one(replace(KILLED, text=text, replacement=replacement))


@pytest.mark.parametrize(("failed", "wrong"), [((), ""), (("Sent_ReservedIsZero",), "declared as one that survives")])
def test_a_survivor_must_survive(failed: Sequence[str], wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "failed_cases", lambda mutant: set(failed))
    found = try_one(MUTANTS["transform-lengths"])
    assert wrong in found.wrong and bool(wrong) is bool(found.wrong)


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_all_mutants() -> None:
    assert main([]) == 0
