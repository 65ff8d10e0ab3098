"""A domain of Samba for tests: its controllers, a member and a client, each in a network namespace of its own.

The controller is Debian's newest Samba in a folder (``tools/setup.sh samba-newest``), which takes root.
"""

from __future__ import annotations

import os
import shutil
import signal
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
_OWN_PLACES = 'mount --bind "$1" "$2" && mount --bind "$3" "$4" || exit 125; shift 4; exec "$@"'
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


class Controller:
    """One controller: its files, and its process as long as it runs."""

    def __init__(self, domain: Domain, member: str) -> None:
        self._domain = domain
        self.member = member
        self.name = f"{member}.{domain.realm.lower()}"
        self.folder = domain.folder / member
        self._run = domain.folder / f"{member}-run"
        """What it has at run time. Other controllers have a /run of their own."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return self._domain.network.address(self.member)

    @property
    def settings(self) -> str:
        return str(self.folder / "etc" / "smb.conf")

    def inside(self) -> list[str]:
        """Return the first words of programs of the newest Samba on this machine."""
        (self._run / "samba").mkdir(parents=True, exist_ok=True)
        places = (self._domain.folder / "resolv.conf", ROOT / "etc/resolv.conf", self._run, ROOT / "run")
        own = ["sh", "-c", _OWN_PLACES, "sh", *map(str, places)]
        bound = ["unshare", "--mount", "--propagation", "private", *own]
        prefix = [*self._domain.network.prefix(self.member), *bound]
        return [*prefix, *self._domain.bound_hosts(), *samba_root.prefix(ROOT, self._domain.folder)]

    def make(self, *arguments: str) -> None:
        """Make its files with samba-tool. Raises ``CalledProcessError``."""
        self._domain.samba(self, *arguments, f"--targetdir={self.folder}", *(f"--option={one}" for one in _OPTIONS))
        self._complete_settings()

    def start(self) -> None:
        """Start it, and wait until it answers. Raises ``TimeoutError``."""
        command = ["/usr/sbin/samba", "-F", "--no-process-group", "-s", self.settings]
        with (self._domain.folder / f"{self.member}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.inside(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._await()

    def send(self, number: int) -> None:
        """Send a signal to all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it without a word."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it, if it runs."""
        if self.process is None:
            return
        self.send(number)
        self.process.wait()
        self.process = None

    def _complete_settings(self) -> None:
        """Have it ask nobody but the domain's forwarder."""
        lines = [*_OPTIONS, f"dns forwarder = {self._domain.forwarder}"]
        path = Path(self.settings)
        added = "".join(f"\t{line}\n" for line in lines)
        made = "".join(line for line in path.read_text().splitlines(keepends=True) if "dns forwarder" not in line)
        path.write_text(made.replace("[global]\n", f"[global]\n{added}", 1))

    def _await(self) -> None:
        """Wait until it answers for Kerberos, LDAP and RPC. Raises ``TimeoutError``."""
        end = time.monotonic() + _START_SECONDS

        def look() -> None:
            for port in (53, 88, 135, 389, 445):
                while True:
                    try:
                        socket.create_connection((self.address, port), timeout=2).close()
                        break
                    except OSError:
                        if time.monotonic() > end:
                            raise TimeoutError(f"port {port} of {self.name} does not answer") from None
                        time.sleep(0.2)

        self._domain.network.run("client", look)


class Domain:
    """The machines "dc1" (dc1.example.test), "member", "client" and, after ``second``, "dc2"."""

    realm, workgroup = REALM, WORKGROUP
    members: tuple[str, ...] = ("dc1", "dc2")
    """Machines of the controllers."""
    password = PASSWORD
    """Of all users."""
    forwarder = ""
    """Address of who knows names of other domains. Empty: nobody does."""

    def __init__(self, folder: Path, network: Network | None = None) -> None:
        """``network``: one that is up, with the machines above."""
        self.folder = folder
        self._is_guest = network is not None
        self.network = network or Network(["dc1", "member", "client", "dc2"])
        self.first, self._second = (Controller(self, member) for member in self.members)

    @property
    def controllers(self) -> tuple[Controller, Controller]:
        """Both controllers; the second one runs after ``second``."""
        return self.first, self._second

    def replicate(self, part: str = "") -> None:
        """Have both controllers know what either of them does. ``part``: "CN=Configuration," is that of the sites."""
        base = part + ",".join(f"DC={label}" for label in self.realm.lower().split("."))
        who = ["-U", f"{self.workgroup}\\Administrator%{PASSWORD}"]
        for one, other in (self.controllers, self.controllers[::-1]):
            self.tool("drs", "replicate", one.name, other.name, base, *who)

    @property
    def address(self) -> str:
        """Address of the first controller."""
        return self.first.address

    def up(self) -> None:
        """Make the domain, and start its controller. Raises ``CalledProcessError`` and ``TimeoutError``."""
        if not self._is_guest:
            self.network.up()
        self._write_names([self.first])
        self.first.make(
            "domain",
            "provision",
            f"--realm={self.realm}",
            f"--domain={self.workgroup}",
            "--server-role=dc",
            "--dns-backend=SAMBA_INTERNAL",
            "--use-rfc2307",
            f"--host-name={self.first.member}",
            f"--host-ip={self.address}",
            f"--adminpass={PASSWORD}",
            "--function-level=2016",
        )
        self.tool("domain", "passwordsettings", "set", "--complexity=off", "--min-pwd-age=0", "--history-length=0")
        for name in ("alice", "disabled"):
            self.tool("user", "create", name, PASSWORD)
        self.tool("user", "disable", "disabled")
        self.first.start()

    def second(self) -> Controller:
        """Have a second controller join the domain, and start it. Return it; once it runs, nothing is done."""
        if self._second.process is not None:
            return self._second
        if not self._second.folder.exists():
            who = ["-U", f"{self.workgroup}\\Administrator%{PASSWORD}"]
            names = [f"--server={self.first.name}", f"--option=netbios name = {self._second.member}"]
            self._second.make("domain", "join", self.realm.lower(), "DC", *who, *names, "--dns-backend=SAMBA_INTERNAL")
        self._second.start()
        self._write_names([self.first, self._second])
        return self._second

    def down(self) -> None:
        """End the controllers, and remove the namespaces."""
        for controller in (self.first, self._second):
            controller.end()
        if not self._is_guest:
            self.network.down()

    def tool(self, *arguments: str) -> str:
        """Run samba-tool on the first controller's files, and return what it prints."""
        return self.samba(self.first, *arguments, "-s", self.first.settings)

    def samba(self, controller: Controller, *arguments: str) -> str:
        """Run samba-tool on a controller's machine, and return what it prints."""
        words = [*controller.inside(), "samba-tool", *arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

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
        return [*self.network.prefix(member), *self.bound_hosts(), *arguments]

    def bound_hosts(self) -> list[str]:
        """Return the first words of programs that see the domain's names."""
        names = [str(self.folder / "hosts"), str(self.folder / "resolv.conf")]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BIND, "sh", *names]

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "KRB5_CONFIG": str(self.folder / "krb5.conf"), "SMB3SERVER_PASSWORD": PASSWORD, **more}

    def _write_names(self, controllers: Sequence[Controller]) -> None:
        domain = self.realm.lower()
        own = f"{self.network.address('member')} files.{domain} files\n"
        hosts = "".join(f"{one.address} {one.name} {one.member}\n" for one in (self.first, self._second))
        servers = "".join(f"nameserver {one.address}\n" for one in controllers)
        kdcs = "".join(f"  kdc = {one.address}\n" for one in controllers)
        # Mounts are of these files: they keep their inodes.
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}{own}")
        (self.folder / "resolv.conf").write_text(f"search {domain}\noptions timeout:1 attempts:2\n{servers}")
        (self.folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {self.realm}\n rdns = false\n dns_lookup_realm = false\n"
            f"[realms]\n {self.realm} = {{\n{kdcs} }}\n[domain_realm]\n .{domain} = {self.realm}\n"
        )
