"""Central access policies of a domain of Samba: read from its directory, and applied by the claims in its tickets."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.domain.controller import PASSWORD, REALM, WORKGROUP, Domain
from tests.system.domain.member import Member

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.timeout(300)]

HOST = f"files.{REALM.lower()}"
POLICY, UNKNOWN = "S-1-17-1-2-3-4-5", "S-1-17-6-6-6"
BASE = "CN=Claims Configuration,CN=Services,CN=Configuration," + ",".join(
    f"DC={part}" for part in REALM.lower().split(".")
)
LDIF = """
dn: CN=IT rule,CN=Central Access Rules,{base}
objectClass: msAuthz-CentralAccessRule
msAuthz-EffectiveSecurityPolicy: O:SYG:SYD:AR(A;;FA;;;BA)(A;;FA;;;SY)(XA;;FA;;;AU;(@USER.{department} == "IT"))

dn: CN=IT,CN=Central Access Policies,{base}
objectClass: msAuthz-CentralAccessPolicy
msAuthz-CentralAccessPolicyID: {policy}
msAuthz-MemberRulesInCentralAccessPolicy: CN=IT rule,CN=Central Access Rules,{base}
"""
DIRECTORY = """
import sys
from samba.auth import system_session
from samba.param import LoadParm
from samba.samdb import SamDB
lp = LoadParm(sys.argv[1])
db = SamDB(session_info=system_session(lp), lp=lp)
if sys.argv[2] == "add":
    db.add_ldif(sys.stdin.read())
else:
    print(db.search(sys.argv[3], expression=f"(displayName={sys.argv[2]})", attrs=["cn"])[0]["cn"])
"""


def in_directory(domain: Domain, *arguments: str, typed: str = "") -> str:
    """Have the controller's Samba change or search its directory."""
    words = [*domain.first.inside(), "python3", "-c", DIRECTORY, domain.first.settings, *arguments]
    done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def member(domain: Domain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """A member with the folders ``it`` and ``lost``, the policy of which the directory does not have."""
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    for name, department in (("ivan", "IT"), ("hanna", "HR")):
        domain.tool("user", "create", name, PASSWORD, f"--department={department}")
    domain.tool("domain", "claim", "claim-type", "create", "--attribute=department", "--class=user", "--enable")
    department = in_directory(domain, "department", f"CN=Claim Types,{BASE}")
    in_directory(domain, "add", typed=LDIF.format(base=BASE, department=department, policy=POLICY))
    made = Member(domain, tmp_path_factory.mktemp("policies"), 'idmap = "none"')
    for folder in ("it", "lost"):
        (made.folder / "data" / folder).mkdir()
        (made.folder / "data" / folder).chmod(0o777)
    joined = made.run("join", "--reuse")
    assert joined.returncode == 0, joined.stderr
    with made.serving():
        file = made.folder / "state" / "domain.policies"
        end = time.monotonic() + 40
        while not file.exists():
            assert time.monotonic() < end, made.log
            time.sleep(0.1)
        for name in ("ivan", "hanna", "Administrator"):
            assert made.kinit(name, str(made.folder / name)).returncode == 0
        for folder, policy in (("it", POLICY), ("lost", UNKNOWN)):
            done = by_impacket(made, "--set", "data", folder, policy)
            assert done.returncode == 0, done.stderr + made.log
        yield made
    # Other modules join under the same name.
    left = made.run("leave")
    assert left.returncode == 0, left.stderr


def by_impacket(member: Member, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tests.system.domain.scoped_policy"]
    root = Path(__file__).parents[3]
    return member.domain.command(
        "client", *program, HOST, WORKGROUP, "Administrator", PASSWORD, *arguments, PYTHONPATH=str(root)
    )


def lists(member: Member, user: str, folder: str, *, ticket: bool = True) -> bool:
    """Return whether a user may list a folder, as smbclient finds."""
    done = member.smbclient(user, f"ls {folder}\\*", cache=str(member.folder / user) if ticket else "")
    assert ("blocks available" in done.stdout) != ("NT_STATUS_ACCESS_DENIED" in done.stdout), done.stdout + done.stderr
    return "blocks available" in done.stdout


@pytest.mark.parametrize(("user", "admitted"), [("ivan", True), ("hanna", False), ("Administrator", True)])
def test_a_policy_lets_in_whom_it_names_by_claims(member: Member, user: str, admitted: bool) -> None:
    """The folder's own descriptor lets everybody in."""
    assert lists(member, user, "it") == admitted


def test_a_password_brings_no_claims(member: Member) -> None:
    assert not lists(member, "ivan", "it", ticket=False)


def test_files_made_there_have_the_policy(member: Member) -> None:
    put = member.smbclient("ivan", "put /etc/hostname it\\f", cache=str(member.folder / "ivan"))
    assert put.returncode == 0, put.stdout
    for user, word in (("ivan", "getting file"), ("hanna", "NT_STATUS_ACCESS_DENIED")):
        got = member.smbclient(user, "get it\\f /dev/null", cache=str(member.folder / user))
        assert word in got.stdout + got.stderr


def test_files_of_an_unknown_policy_are_for_administrators(member: Member) -> None:
    assert not lists(member, "ivan", "lost") and lists(member, "Administrator", "lost")


def test_dialogs_are_told_which_policies_there_are(member: Member) -> None:
    """[MS-CAPR 3.1.4.1]"""
    assert by_impacket(member).stdout.split() == [POLICY]


def test_the_status_names_them(member: Member) -> None:
    shown = member.run("status")
    assert "central access policies: IT; a controller has said so " in shown.stdout, shown.stdout


def test_nothing_of_this_made_the_server_fail(member: Member) -> None:
    assert "Traceback" not in member.log
