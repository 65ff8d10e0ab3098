"""A throw-away Kerberos realm on loopback: MIT's KDC with its database, configuration and keytab in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tools.support.ports import free_port

REALM = "SMB3.TEST"
HOST = "files.smb3.test"
"""What the service calls itself; nothing resolves it, clients are given the address."""
USER, PASSWORD = "alice", "wonderland"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kvno")
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"

_CLIENT = """[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 0
 permitted_enctypes = {enctypes}
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 {host} = {realm}
"""
_FOREIGN_CLIENT = """[realms]
 {foreign} = {{
  kdc = 127.0.0.1:{port}
 }}
[capaths]
 {foreign} = {{
  {realm} = .
 }}
"""
_FOREIGN_SERVER = """[realms]
 {foreign} = {{
  database_name = {folder}/foreign-principal
  key_stash_file = {folder}/foreign-stash
  acl_file = {folder}/acl
 }}
"""
_SERVER = """[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  supported_enctypes = aes256-cts:normal aes128-cts:normal
  max_life = 1h
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]


class Kdc:
    """Started when made; ``stop`` it."""

    def __init__(self, folder: Path, enctypes: str = "aes256-cts aes128-cts", foreign: str = "") -> None:
        """``foreign``: one more realm, whose principals get tickets of this one's services by a cross-realm key."""
        self.folder = folder
        self.port = free_port()
        self.keytab = folder / "server.keytab"
        self.cache = folder / "cache"
        values = {"realm": REALM, "host": HOST, "port": self.port, "folder": folder, "enctypes": enctypes}
        values["foreign"] = foreign
        more = (_FOREIGN_CLIENT, _FOREIGN_SERVER) if foreign else ("", "")
        (folder / "krb5.conf").write_text((_CLIENT + more[0]).format(**values))
        (folder / "kdc.conf").write_text((_SERVER + more[1]).format(**values))
        self.environment = {
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": str(self.cache),
            "KRB5RCACHENAME": f"file2:{folder}/replay-cache",
        }
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.administer(f"addprinc -pw {PASSWORD} {USER}@{REALM}")
        self.administer(f"addprinc -randkey cifs/{HOST}@{REALM}")
        self.administer(f"addprinc -randkey host/{HOST}@{REALM}")
        self.administer(f"ktadd -k {self.keytab} cifs/{HOST}@{REALM}")
        self.administer(f"ktadd -k {folder}/host.keytab host/{HOST}@{REALM}")
        realms = [REALM]
        if foreign:
            realms.append(foreign)
            self.run("kdb5_util", "create", "-s", "-r", foreign, "-P", "master")
            for where in realms:
                self.administer(f"addprinc -pw cross krbtgt/{REALM}@{foreign}", where)
        self._process = subprocess.Popen(
            ["krb5kdc", "-n", *(option for realm in realms for option in ("-r", realm))],
            env={**os.environ, **self.environment, "PATH": _PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        self.stop()
        raise AssertionError("the KDC did not start: " + (self.folder / "kdc.log").read_text())

    def run(self, *command: str, text: str = "") -> str:
        """Output of a Kerberos program in this realm."""
        return subprocess.run(
            command,
            input=text,
            env={**os.environ, **self.environment, "PATH": _PATH},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout

    def administer(self, query: str, realm: str = REALM) -> None:
        self.run("kadmin.local", "-r", realm, "-q", query)

    def log_on(self, lifetime: str = "10m") -> None:
        """A ticket-granting ticket and one for the service in the cache."""
        self.run("kinit", "-l", lifetime, f"{USER}@{REALM}", text=f"{PASSWORD}\n")
        self.run("kvno", f"cifs/{HOST}@{REALM}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
