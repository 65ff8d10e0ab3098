"""A server of this project that is a member of the tests' domain."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from smb3server.domain.controllers import DomainControllers
from smb3server.domain.machine import Machine
from smb3server.domain.netlogon import Netlogon
from smb3server.domain.user import Controller
from tests.system.domain.controller import PASSWORD, REALM, WORKGROUP, Domain

CONFIG = """
[server]
name = "FILES"
listen = ["{address}"]
port = 445
state = "{folder}/state"
admins = ['{workgroup}\\Administrator']
[domain]
realm = "{realm}"
{settings}
[[share]]
name = "data"
path = "{folder}/data"
"""


class Member:
    """A server of this project that has joined."""

    def __init__(self, domain: Domain, folder: Path, settings: str = "") -> None:
        """``settings``: lines of the section [domain]."""
        self.domain = domain
        self.folder = folder
        self.config = folder / "server.toml"
        (folder / "data").mkdir()
        (folder / "data").chmod(0o777)
        address = domain.network.address("member")
        text = CONFIG.format(
            address=address, folder=folder, realm=REALM.lower(), workgroup=WORKGROUP, settings=settings
        )
        self.config.write_text(text)

    def smbclient(self, user: str, commands: str, *, cache: str = "") -> subprocess.CompletedProcess[str]:
        """Log on to the share by smbclient, with the ticket of a cache or with the password."""
        share = f"//files.{REALM.lower()}/data"
        words = ["--use-kerberos=required"] if cache else ["-U", f"{WORKGROUP}\\{user}%{PASSWORD}"]
        more = {"KRB5CCNAME": cache} if cache else {}
        return self.domain.command("client", "smbclient", share, *words, "-c", commands, **more)

    def kinit(self, user: str, cache: str) -> subprocess.CompletedProcess[str]:
        return self.domain.command("client", "kinit", user, typed=f"{PASSWORD}\n", KRB5CCNAME=cache)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.domain.smb3server("domain", *arguments, "--config", str(self.config), **environment)

    @property
    def machine(self) -> Machine:
        return Machine(self.folder / "state" / "domain.secret", self.folder / "state" / "domain.keytab")

    def netlogon(self, *controllers: Controller) -> Netlogon:
        fixed = DomainControllers(REALM, [one.name for one in controllers], resolve=at_addresses(controllers))
        return Netlogon(fixed, self.machine)

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    @contextlib.contextmanager
    def serving(self, *prefix: str, options: Sequence[str] = ()) -> Iterator[None]:
        log = self.folder / "server.log"
        with log.open("wb") as output:
            command = [*prefix, sys.executable, "-m", "smb3server", "--config", str(self.config), *options]
            words = self.domain.words("member", command)
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.domain.environment()
            )
        try:
            end = time.monotonic() + 40
            while "\nready" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


def at_addresses(controllers: tuple[Controller, ...]) -> Callable[[str], str]:
    """Return what resolves the names of these controllers."""
    addresses = {one.name: one.address for one in controllers}
    return lambda host: addresses[host]
