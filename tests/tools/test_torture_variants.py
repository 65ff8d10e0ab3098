"""smbtorture under other conditions: what is asked of both sides, and how a run is held against the plain one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools.torture import variant as variants
from tools.torture.outcome import Outcome, write
from tools.torture.plan import Plan, Special
from tools.torture.server import configuration


@pytest.mark.parametrize(
    ("signing", "encryption", "fabric", "name"),
    [
        (False, False, None, ""),
        (True, False, None, "signing"),
        (False, True, None, "encryption"),
        (False, True, "iwarp", "iwarp-encryption"),
    ],
)
def test_names(signing: bool, encryption: bool, fabric: str | None, name: str) -> None:
    assert variants.make(signing, encryption, fabric).name == name


def test_both_sides_require_it(tmp_path: Path) -> None:
    variant = variants.make(True, True, None)
    assert variant.client_options == ["--option=clientsigning=required", "--client-protection=encrypt"]
    server = tomllib.loads(configuration({"t": tmp_path}, {}, variant.server_options))["server"]
    assert server["require_signing"] and server["require_encryption"]


def test_suites() -> None:
    plain, signing, fabric = (variants.make(s, False, f) for s, f in ((False, None), (True, None), (False, "iwarp")))
    suites = ("smb2.session", "smb2.lock", "smb2.acls")
    assert [plain.wants(suite) for suite in suites] == [True, True, True]
    assert [signing.wants(suite) for suite in suites] == [False, True, True]
    assert [fabric.wants(suite) for suite in suites] == [False, True, False]


def test_what_lasts() -> None:
    """Continuously available shares, on one node and in a cluster."""
    one, two = variants.make(available=True), variants.make(cluster=True)
    assert (one.name, two.name) == ("available", "cluster")
    for variant in (one, two):
        assert variant.share_options == {"continuous_availability": True}
        assert [variant.wants(f"smb2.{name}") for name in ("replay", "session", "lock")] == [True, True, False]
    assert not variants.make().share_options


def test_slow_storage() -> None:
    slow = variants.make(slow=True)
    assert (slow.name, slow.share_options) == ("slow", {"slow_storage": True})
    assert [slow.wants(f"smb2.{name}") for name in ("replay", "lock", "acls")] == [True, True, False]


def test_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "plain.tsv"
    write(plain, [Outcome("s", "s.a", "pass"), Outcome("s", "s.b", "pass"), Outcome("s", "s.c", "fail")])
    now = [Outcome("s", "s.a", "pass"), Outcome("s", "s.b", "fail", reason="why"), Outcome("s", "s.c", "pass")]
    assert [row.test for row in variants.worse(now, plain)] == ["s.b"]
    assert variants.worse(now, tmp_path / "missing") == []
    page = variants.markdown({"signing": now}, plain)
    assert "2 of 3 tests pass; 2 differ." in page
    assert "- s.b: fail. not explained: why" in page
    assert "- s.c: pass. passes only here" in page
    monkeypatch.setattr(variants, "REASONS", tmp_path / "reasons.toml")
    (tmp_path / "reasons.toml").write_text('[signing]\n"s.b" = "It cannot."\n')
    assert "- s.b: fail. It cannot." in variants.markdown({"signing": now}, plain)


def test_servers_that_nobody_needs_are_not_started() -> None:
    shares = {"known": {}, "other": {"server": "x"}, "needed": {"server": "y"}}
    plan = Plan({"s": ["s.a"]}, shares, {}, [Special(("s.a",), "needed"), Special(("z.*",), "other")])
    assert list(plan.wanted_shares()) == ["known", "needed"]


def test_reasons_are_for_variants_that_exist() -> None:
    known = {
        variants.make(s, e, f).name
        for s in (False, True)
        for e in (False, True)
        for f in (None, "iwarp", "loopback", "mixed")
    } | {variants.make(available=True).name, variants.make(cluster=True).name}
    assert set(tomllib.loads(variants.REASONS.read_text())) <= known
