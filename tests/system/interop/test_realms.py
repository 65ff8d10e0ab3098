"""Two realms that trust each other, and clients that nobody here wrote with tickets of both."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.command import Served, serve, stop
from tests.lab.kdc import HOST, PASSWORD, REALM, USER, Kdc, missing_programs

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("gssapi", "krb5")),
        reason="Python's gssapi and krb5 are not installed: pip install '.[kerberos]'",
    ),
    pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed"),
]

FOREIGN, FOREIGN_PASSWORD = "EVIL.TEST", "evil"
STRANGER = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    made = Kdc(tmp_path_factory.mktemp("kdc"), foreign=FOREIGN)
    for name in (USER, "carol"):
        made.administer(f"addprinc -pw {FOREIGN_PASSWORD} {name}@{FOREIGN}", FOREIGN)
    made.administer(f"addprinc -pw {PASSWORD} mallory@{REALM}")
    yield made
    made.stop()


def started(kdc: Kdc, folder: Path, server: str = "") -> Served:
    for name in ("private", "public"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    file = folder / "realms.toml"
    file.touch(0o600)
    file.write_text(
        f'[server]\nkeytab = "{kdc.keytab}"\n{server}\n'
        f'[[user]]\nname = "{USER}"\npassword = "of NTLM"\n'
        f'[[user]]\nname = "carol"\npassword = "of NTLM"\nprincipal = "carol@{FOREIGN}"\n'
        f'[[share]]\nname = "private"\npath = "{folder / "private"}"\nusers = ["{USER}", "carol"]\n'
        f'[[share]]\nname = "public"\npath = "{folder / "public"}"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        return serve(folder, "--config", str(file))


def reach(kdc: Kdc, served: Served, principal: str, password: str, share: str, commands: str = "mkdir made") -> str:
    """Empty if it went well."""
    kdc.run("kinit", principal, text=f"{password}\n")
    client = ["smbclient", f"//{HOST}/{share}", "-I", "127.0.0.1", "-p", str(served.port), "--use-kerberos=required"]
    run = subprocess.run(
        [*client, f"--use-krb5-ccache={kdc.cache}", "-c", commands],
        env={**os.environ, **kdc.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout + run.stderr if run.returncode else ""


def test_the_same_name_of_another_realm_is_not_the_account(kdc: Kdc, tmp_path: Path) -> None:
    served = started(kdc, tmp_path)
    try:
        for share in ("private", "public"):
            answer = reach(kdc, served, f"{USER}@{FOREIGN}", FOREIGN_PASSWORD, share)
            assert "LOGON_FAILURE" in answer or "ACCESS_DENIED" in answer
            assert reach(kdc, served, f"mallory@{REALM}", PASSWORD, share)
            assert not (tmp_path / share / "made").exists()
        assert "not among trusted_realms" in (tmp_path / "log").read_text()
        assert "unknown_principals refuses it" in (tmp_path / "log").read_text()
        assert reach(kdc, served, f"{USER}@{REALM}", PASSWORD, "private") == ""
        # An account that names its principal is that one's, whatever the realm.
        assert reach(kdc, served, f"carol@{FOREIGN}", FOREIGN_PASSWORD, "private", "mkdir hers") == ""
    finally:
        assert stop(served) == 0


def test_unknown_principals_act_as_who_is_named_for_them(kdc: Kdc, tmp_path: Path) -> None:
    served = started(kdc, tmp_path, f'unknown_principals = "user:{STRANGER}"')
    try:
        assert "ACCESS_DENIED" in reach(kdc, served, f"mallory@{REALM}", PASSWORD, "private")
        assert reach(kdc, served, f"mallory@{REALM}", PASSWORD, "public") == ""
        assert (tmp_path / "public" / "made").stat().st_uid == pwd.getpwnam(STRANGER).pw_uid
        assert reach(kdc, served, f"{USER}@{FOREIGN}", FOREIGN_PASSWORD, "public", "mkdir other")
        assert not (tmp_path / "public" / "other").exists()
    finally:
        assert stop(served) == 0


def test_a_server_without_ntlm(kdc: Kdc, tmp_path: Path) -> None:
    served = started(kdc, tmp_path, "ntlm = false")
    try:
        login = ["-U", f"{USER}%of NTLM", "--use-kerberos=off", "-c", "ls"]
        client = ["smbclient", "//127.0.0.1/public", "-p", str(served.port), *login]
        run = subprocess.run(client, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode and ("LOGON_FAILURE" in run.stdout + run.stderr or "INVALID_PARAM" in run.stdout)
        assert reach(kdc, served, f"{USER}@{REALM}", PASSWORD, "public") == ""
    finally:
        assert stop(served) == 0
