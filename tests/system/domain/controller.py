"""A domain of Samba for tests: its controller, a member and a client, each in a network namespace of its own.

The controller is Debian's newest Samba in a folder (``tools/setup.sh samba-newest``), which takes root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import network
from tools.cluster.network import Network
from tools.torture import samba_root

REALM, WORKGROUP, PASSWORD = "EXAMPLE.TEST", "EXAMPLE", "Pass-word.1"
ROOT = samba_root.DEFAULT
_START_SECONDS = 60
_BIND = """hosts=$1 resolv=$2
shift 2
mount --bind "$hosts" /etc/hosts && mount --bind "$resolv" /etc/resolv.conf || exit 125
exec "$@"
"""
_OPTIONS = ("ad dc functional level = 2016", "bind interfaces only = yes", "interfaces = lo eth0", "max log size = 0")


def why_not() -> str | None:
    """Return why there can be no controller here, or None."""
    if not (ROOT / "usr/sbin/samba").exists():
        return f"no Samba with samba-ad-dc in {ROOT}: run tools/setup.sh samba-newest"
    reason = network.why_not()
    if reason is not None:
        return reason
    lacking = [name for name in ("smbclient", "kinit") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not installed (make test-tools)" if lacking else None


class Domain:
    """The members "dc" (dc1.example.test), "member" and "client"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(["dc", "member", "client"])
        self._process: subprocess.Popen[bytes] | None = None
        self._place = folder / "dc"

    @property
    def address(self) -> str:
        return self.network.address("dc")

    def up(self) -> None:
        """Make the domain, and start its controller. Raises ``CalledProcessError`` and ``TimeoutError``."""
        self.network.up()
        self._write_names()
        self.tool(
            "domain",
            "provision",
            f"--targetdir={self._place}",
            f"--realm={REALM}",
            f"--domain={WORKGROUP}",
            "--server-role=dc",
            "--dns-backend=SAMBA_INTERNAL",
            "--host-name=dc1",
            f"--host-ip={self.address}",
            f"--adminpass={PASSWORD}",
            "--function-level=2016",
            *(f"--option={option}" for option in _OPTIONS),
            settings=False,
        )
        self._complete_settings()
        self.tool("domain", "passwordsettings", "set", "--complexity=off", "--min-pwd-age=0", "--history-length=0")
        for name in ("alice", "disabled"):
            self.tool("user", "create", name, PASSWORD)
        self.tool("user", "disable", "disabled")
        command = ["/usr/sbin/samba", "-F", "--no-process-group", "-s", self._settings]
        log = (self.folder / "dc.log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [*self._inside(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._await()

    def down(self) -> None:
        """End the controller, and remove the namespaces."""
        if self._process is not None:
            os.killpg(self._process.pid, 15)
            self._process.wait()
        self.network.down()

    def tool(self, *arguments: str, settings: bool = True) -> str:
        """Run samba-tool on the controller's files, and return what it prints."""
        words = [*self._inside(), "samba-tool", *arguments, *(("-s", self._settings) if settings else ())]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=110).stdout

    def command(
        self, member: str, *arguments: str, typed: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this system as a machine of the domain."""
        return subprocess.run(
            self.words(member, arguments),
            input=typed,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=self.environment(**environment),
        )

    def smb3server(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``smb3server`` on the member."""
        return self.command("member", sys.executable, "-m", "smb3server", *arguments, **environment)

    def words(self, member: str, arguments: Sequence[str]) -> list[str]:
        """Return the words of a command that runs as a machine of the domain."""
        names = [str(self.folder / "hosts"), str(self.folder / "resolv.conf")]
        bound = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BIND, "sh", *names]
        return [*self.network.prefix(member), *bound, *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "KRB5_CONFIG": str(self.folder / "krb5.conf"), "SMB3SERVER_PASSWORD": PASSWORD, **more}

    @property
    def _settings(self) -> str:
        return str(self._place / "etc" / "smb.conf")

    def _inside(self) -> list[str]:
        return [*self.network.prefix("dc"), *samba_root.prefix(ROOT, self.folder)]

    def _write_names(self) -> None:
        domain = REALM.lower()
        own = f"{self.network.address('member')} files.{domain} files\n"
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} dc1.{domain} dc1\n{own}")
        (self.folder / "resolv.conf").write_text(f"search {domain}\nnameserver {self.address}\n")
        (self.folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {REALM}\n rdns = false\n dns_lookup_realm = false\n"
            f"[realms]\n {REALM} = {{\n  kdc = {self.address}\n }}\n[domain_realm]\n .{domain} = {REALM}\n"
        )

    def _complete_settings(self) -> None:
        """Keep what the controller has at run time out of a /run that other controllers use."""
        run = self.folder / "run"
        run.mkdir()
        lines = [*_OPTIONS, "dns forwarder ="]
        lines += [f"{name} = {run}" for name in ("pid directory", "ncalrpc dir", "winbindd socket directory")]
        path = Path(self._settings)
        added = "".join(f"\t{line}\n" for line in lines)
        path.write_text(path.read_text().replace("[global]\n", f"[global]\n{added}", 1))

    def _await(self) -> None:
        """Wait until the controller answers for Kerberos, LDAP and RPC. Raises ``TimeoutError``."""
        end = time.monotonic() + _START_SECONDS

        def look() -> None:
            for port in (53, 88, 135, 389, 445):
                while True:
                    try:
                        socket.create_connection((self.address, port), timeout=2).close()
                        break
                    except OSError:
                        if time.monotonic() > end:
                            raise TimeoutError(f"port {port} of the controller does not answer") from None
                        time.sleep(0.2)

        self.network.run("client", look)
