"""Kerberos in binds, with MIT's KDC and Samba's Python bindings (Heimdal) as the client."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from smb3server.auth.acceptor import Acceptor, kerberos_available
from smb3server.auth.users import Principals, UserDatabase
from smb3server.backends.base import User
from tests.lab.witness import PASSWORD, USER, Running, settings
from tools.support.ports import free_port

REALM = "WITNESS.TEST"
SYSTEM_PYTHON = "/usr/bin/python3"


def _missing() -> str:
    for program in ("krb5kdc", "kdb5_util", "kadmin.local"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            return f"{program} is not installed"
    if not Path("/usr/lib/python3/dist-packages/samba").exists():
        return "Samba's Python bindings are not installed"
    return kerberos_available() or ""


pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")]


def _run(*command: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A realm with ``u`` and ``host/localhost``, and the environment that leads to it."""
    folder = tmp_path_factory.mktemp("realm")
    port = free_port()
    (folder / "krb5.conf").write_text(
        f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n"
        "dns_canonicalize_hostname = false\nudp_preference_limit = 1\n"
        f"[realms]\n{REALM} = {{\nkdc = tcp/127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost = {REALM}\n"
    )
    (folder / "kdc.conf").write_text(
        f'[kdcdefaults]\nkdc_listen = ""\nkdc_tcp_listen = 127.0.0.1:{port}\n'
        f"[realms]\n{REALM} = {{\ndatabase_name = {folder}/principal\nkey_stash_file = {folder}/stash\n"
        f"acl_file = {folder}/acl\n}}\n"
    )
    patch = pytest.MonkeyPatch()
    patch.setenv("KRB5_CONFIG", str(folder / "krb5.conf"))
    patch.setenv("KRB5_KDC_PROFILE", str(folder / "kdc.conf"))
    patch.setenv("KRB5_KTNAME", str(folder / "keytab"))
    patch.setenv("KRB5RCACHETYPE", "none")
    _run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
    for query in (
        f"addprinc -pw {PASSWORD} {USER}",
        "addprinc -randkey host/localhost",
        f"ktadd -k {folder}/keytab host/localhost",
    ):
        _run("kadmin.local", "-r", REALM, "-q", query)
    program = shutil.which("krb5kdc", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    kdc = subprocess.Popen(
        [str(program), "-n", "-r", REALM], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "KRB5_TRACE": "/dev/null"},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and kdc.poll() is None, "the KDC does not start"
                threading.Event().wait(0.05)
        yield folder
    finally:
        kdc.terminate()
        kdc.wait(10)
        patch.undo()


@pytest.fixture
def kerberized(realm: Path) -> Iterator[Running]:
    everybody = Principals(UserDatabase(), [REALM], User(65534, 65534))
    acceptor = partial(Acceptor, UserDatabase(), "FILES", kerberos=everybody, service="host")
    server = Running(settings(), new_acceptor=acceptor)
    yield server
    server.stop()


SCRIPT = f"""
import sys
from samba import credentials, param
from samba.dcerpc import witness as w
lp = param.LoadParm()
lp.load_default()
lp.set("realm", {REALM!r})
c = credentials.Credentials()
c.guess(lp)
c.set_username({USER!r}); c.set_password({PASSWORD!r}); c.set_realm({REALM!r})
c.set_kerberos_state(credentials.MUST_USE_KERBEROS)
p = w.witness(f"ncacn_ip_tcp:127.0.0.1[{{sys.argv[1]}},target_hostname=localhost,{{sys.argv[2]}}]", lp, c)
print(p.GetInterfaceList().num_interfaces)
handle = p.RegisterEx(w.WITNESS_V2, "FILES", "data", "10.9.0.1", "ME", 0, 30)
r = p.AsyncNotify(handle)
print(r.messages[0].name)
p.UnRegister(handle)
"""


@pytest.mark.parametrize("options", ["spnego,sign", "spnego,seal", "krb5,sign", "krb5,seal"])
def test_kerberos(kerberized: Running, options: str) -> None:
    with subprocess.Popen(
        [SYSTEM_PYTHON, "-c", SCRIPT, str(kerberized.service.port), options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        try:
            kerberized.wait_for(
                lambda: client.poll() is not None or any(e.waiters for e in kerberized.service.registrations)
            )
            users = [entry.user for entry in kerberized.service.registrations]
            kerberized.call(kerberized.cluster.resource_changed, "FILES", True)
            output, errors = client.communicate(timeout=20)
        finally:
            client.kill()
    assert output.split() == ["2", "FILES"], errors
    assert users == [f"{REALM}\\{USER}"]
