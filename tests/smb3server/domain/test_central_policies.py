"""Central access policies as the directory has them, as they are kept, and what they mean."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("impacket", reason="needs the part domain")

from smb3server.access.descriptor import Sid
from smb3server.access.policies import RECOVERY
from smb3server.domain import central_policies
from smb3server.domain.central_policies import CentralPolicies, PolicyText, RuleText, file_of, from_directory, kept
from smb3server.domain.ldap_client import NO_SUCH_OBJECT, Entry, LdapError
from smb3server.domain.user import NoController

_Answer = TypeVar("_Answer")

CONFIGURATION = "CN=Configuration,DC=corp,DC=test"
BASE = f"CN=Claims Configuration,CN=Services,{CONFIGURATION}"
FINANCE, STAFF = Sid.parse("S-1-17-1-2-3-4-5"), Sid.parse("S-1-17-1-2-3-4-6")
DOMAIN = Sid.parse("S-1-5-21-1-2-3")
EFFECTIVE = 'O:SYG:SYD:AR(A;;FA;;;BA)(XA;;FR;;;AU;(@USER.ad://ext/department == "Finance"))'


class Directory:
    """A directory with policies and rules. Its names differ in case, as those of a directory may."""

    def __init__(self) -> None:
        self.rules: dict[str, Entry] = {
            f"CN=Finance rule,CN=Central Access Rules,{BASE}": {
                "name": [b"Finance rule"],
                "msauthz-resourcecondition": [b'(@RESOURCE.Department == "Finance")'],
                "msauthz-effectivesecuritypolicy": [EFFECTIVE.encode()],
                "msauthz-proposedsecuritypolicy": [b"nonsense"],
            },
            f"CN=Staff rule,CN=Central Access Rules,{BASE}": {
                "name": [b"Staff rule"],
                "msauthz-effectivesecuritypolicy": [b"O:SYG:SYD:(A;;FA;;;DU)"],
            },
        }
        self.policies: dict[str, Entry] = {
            f"CN=Staff,CN=Central Access Policies,{BASE}": self._policy("Staff", STAFF, "CN=STAFF rule"),
            f"CN=Finance,CN=Central Access Policies,{BASE}": self._policy(
                "Finance", FINANCE, "CN=Finance rule", "CN=Staff rule"
            ),
        }
        self.fails: LdapError | None = None

    @staticmethod
    def _policy(name: str, sid: Sid, *rules: str) -> Entry:
        members = [f"{rule},CN=Central Access Rules,{BASE}".encode() for rule in rules]
        return {
            "name": [name.encode()],
            "msauthz-centralaccesspolicyid": [sid.pack()],
            "msauthz-memberrulesincentralaccesspolicy": members,
        }

    def search(
        self,
        base: str,
        attributes: Sequence[str],
        where: Sequence[tuple[str, str]] = (),
        scope: int = 2,
        most: int = 100,
    ) -> list[tuple[str, Entry]]:
        if not base:
            return [("", {"configurationnamingcontext": [CONFIGURATION.encode()]})]
        if self.fails is not None:
            raise self.fails
        assert base == BASE
        found = self.policies if where == [("objectClass", "msAuthz-CentralAccessPolicy")] else self.rules
        wanted = {name.lower() for name in attributes}
        return [(name, {key: value for key, value in entry.items() if key in wanted}) for name, entry in found.items()]


class Controller:
    """Answers questions about the directory, or not."""

    def __init__(self) -> None:
        self.directory = Directory()
        self.silent = False

    def ask(self, question: Callable[[Any], _Answer]) -> _Answer:
        if self.silent:
            raise NoController("nobody answers")
        return question(self.directory)


FOUND = [
    PolicyText(
        FINANCE,
        "Finance",
        (
            RuleText("Finance rule", '(@RESOURCE.Department == "Finance")', EFFECTIVE),
            RuleText("Staff rule", "", "O:SYG:SYD:(A;;FA;;;DU)"),
        ),
    ),
    PolicyText(STAFF, "Staff", (RuleText("Staff rule", "", "O:SYG:SYD:(A;;FA;;;DU)"),)),
]


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return file_of(tmp_path / "domain.secret")


def applied(controller: Controller, file: Path, names: Sequence[str] | None = None) -> CentralPolicies:
    made = CentralPolicies(controller, file, names, DOMAIN)
    made.load()
    return made


def test_policies_have_the_rules_that_they_name(controller: Controller) -> None:
    assert controller.ask(from_directory) == FOUND


def test_a_forest_without_claims_has_none(controller: Controller) -> None:
    controller.directory.fails = LdapError("no such object", NO_SUCH_OBJECT)
    assert controller.ask(from_directory) == []
    controller.directory.fails = LdapError("too many", 4)
    with pytest.raises(LdapError, match="too many"):
        controller.ask(from_directory)


def test_policies_are_kept_for_starts_without_a_controller(controller: Controller, file: Path) -> None:
    applied(controller, file).refresh()
    controller.silent = True
    again = applied(controller, file)
    assert set(again.policies.known) == {FINANCE, STAFF}
    with pytest.raises(NoController):
        again.refresh()
    assert set(again.policies.known) == {FINANCE, STAFF}


def test_the_file_says_when_a_controller_was_asked(controller: Controller, file: Path) -> None:
    """It is not written again as long as nothing changes."""
    policies = applied(controller, file)
    policies.refresh()
    os.utime(file, (0, 0))
    inode = file.stat().st_ino
    policies.refresh()
    assert kept(file).policies == FOUND and time.time() - kept(file).read_at < 60
    assert file.stat().st_ino == inode and file.stat().st_mode & 0o777 == 0o600
    del controller.directory.policies[f"CN=Staff,CN=Central Access Policies,{BASE}"]
    policies.refresh()
    assert set(policies.policies.known) == {FINANCE} and kept(file).policies == FOUND[:1]


def test_what_cannot_be_kept_applies_and_is_kept_later(
    controller: Controller, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    policies = applied(controller, file)
    with monkeypatch.context() as patch:
        patch.setattr(central_policies, "replace_file", full)
        for _ in range(2):
            with pytest.raises(OSError, match="they apply, but the next start would not know them: No space left"):
                policies.refresh()
            assert set(policies.policies.known) == {FINANCE, STAFF}
    assert not file.exists()
    policies.refresh()
    assert kept(file).policies == FOUND


def test_a_file_that_was_removed_is_written_again(controller: Controller, file: Path) -> None:
    """As the doctor says of a damaged one."""
    policies = applied(controller, file)
    policies.refresh()
    file.unlink()
    policies.refresh()
    assert kept(file).policies == FOUND


def test_the_log_tells_when_the_last_policy_is_gone(
    controller: Controller, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on entries mean nothing. [MS-DTYP 2.5.3.1.4]"""
    policies = applied(controller, file)
    policies.refresh()
    controller.directory.policies.clear()
    policies.refresh()
    assert "shows no central access policies any more" in caplog.text and not policies.policies.known


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2}', b'{"format": 1, "policies": [{"sid": "x"}]}', b"[1"])
def test_a_damaged_file_is_as_good_as_none(controller: Controller, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(ValueError, match="damaged"):
        kept(file)
    policies = applied(controller, file)
    assert not policies.policies.known
    policies.refresh()
    assert set(policies.policies.known) == {FINANCE, STAFF}


def test_a_file_that_others_may_change_is_not_believed(controller: Controller, file: Path) -> None:
    applied(controller, file).refresh()
    file.chmod(0o666)
    assert not applied(controller, file).policies.known


def test_the_configuration_chooses_policies_by_name(controller: Controller, file: Path) -> None:
    for names, wanted in (((), set()), (("finance",), {FINANCE}), (("Nobody's", "STAFF"), {STAFF})):
        policies = applied(controller, file, names)
        policies.refresh()
        assert set(policies.policies.known) == wanted


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("msauthz-effectivesecuritypolicy", b"O:SYG:SYD:(A;;FA;;;Everybody)"),
        ("msauthz-effectivesecuritypolicy", b"O:SYG:SY"),
        ("msauthz-effectivesecuritypolicy", b'O:SYG:SYD:(XA;;FA;;;WD;(@USER.x == "a)'),
        ("msauthz-resourcecondition", b"(@RESOURCE.Department ==)"),
    ],
)
def test_a_policy_that_is_not_understood_lets_administrators_and_owners_in(
    controller: Controller, file: Path, caplog: pytest.LogCaptureFixture, attribute: str, value: bytes
) -> None:
    controller.directory.rules[f"CN=Finance rule,CN=Central Access Rules,{BASE}"][attribute] = [value]
    policies = applied(controller, file)
    policies.refresh()
    assert policies.policies.known[FINANCE] is RECOVERY and policies.policies.known[STAFF] is not RECOVERY
    assert "central access policy Finance: rule Finance rule: " in caplog.text


@pytest.mark.parametrize("what", ["no rules", "a rule that is not shown"])
def test_a_policy_without_its_rules_lets_administrators_and_owners_in(
    controller: Controller, file: Path, what: str
) -> None:
    """A rule that the machine account may not read could be the one that takes everything away."""
    if what == "no rules":
        entry = controller.directory.policies[f"CN=Staff,CN=Central Access Policies,{BASE}"]
        entry["msauthz-memberrulesincentralaccesspolicy"] = []
    else:
        del controller.directory.rules[f"CN=Staff rule,CN=Central Access Rules,{BASE}"]
    policies = applied(controller, file)
    policies.refresh()
    assert policies.policies.known[STAFF] is RECOVERY
