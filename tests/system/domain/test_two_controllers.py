"""Two controllers that die or hang in turn: who has logged on loses nothing, and who comes gets in by the other one."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.domain.controller import REALM, WORKGROUP, Controller, Domain
from tests.system.domain.member import Member

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(900)]

SHARE = f"//files.{REALM.lower()}/data"


@pytest.fixture(scope="module")
def member(domain: Domain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    domain.second()
    names = [f'"{one.name}"' for one in domain.controllers]
    made = Member(domain, tmp_path_factory.mktemp("two"), f"controllers = [{', '.join(names)}]")
    joined = made.run("join", "--reuse")
    assert joined.returncode == 0, joined.stderr
    domain.replicate()
    with made.serving():
        yield made


class LoggedOn:
    """A client of Samba that has logged on, and writes a file at a time. What it prints into a pipe comes late."""

    def __init__(self, member: Member) -> None:
        self._folder = member.folder / "data"
        self._count = 0
        words = ["smbclient", SHARE, "-U", f"{WORKGROUP}\\alice%{member.domain.password}"]
        self._process = subprocess.Popen(
            member.domain.words("client", words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=member.domain.environment(),
        )
        self.write()

    def write(self) -> None:
        """Write a file, and wait for it. Raises ``TimeoutError``."""
        assert self._process.stdin is not None
        self._count += 1
        name = f"written{self._count}"
        self._process.stdin.write(f"put /etc/hostname {name}\n")
        self._process.stdin.flush()
        end = time.monotonic() + 60
        while not (self._folder / name).exists():
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError(f"{name} is not written")
            time.sleep(0.05)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.terminate()
        self._process.wait()
        self._process.stdin.close()
        for number in range(1, self._count + 1):
            (self._folder / f"written{number}").unlink()


@contextlib.contextmanager
def killed(controller: Controller) -> Iterator[None]:
    controller.kill()
    try:
        yield
    finally:
        controller.start()


@contextlib.contextmanager
def hanging(controller: Controller) -> Iterator[None]:
    controller.send(signal.SIGSTOP)
    try:
        yield
    finally:
        controller.send(signal.SIGCONT)


@pytest.mark.parametrize("lost", [killed, hanging])
def test_each_controller_in_turn(
    member: Member, lost: Callable[[Controller], contextlib.AbstractContextManager[None]]
) -> None:
    domain = member.domain
    logged_on = LoggedOn(member)
    for number, controller in enumerate(domain.controllers):
        user = f"user{number}{lost.__name__}"
        # Nobody has asked for this name before.
        domain.tool("user", "create", user, domain.password)
        domain.replicate()
        cache = str(member.folder / user)
        with lost(controller):
            # A logon that waits for the controller, while another client goes on.
            waiting = subprocess.Popen(
                domain.words(
                    "client", ["smbclient", SHARE, "-U", f"{WORKGROUP}\\{user}%{domain.password}", "-c", "ls"]
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=domain.environment(),
            )
            logged_on.write()
            output, _ = waiting.communicate(timeout=200)
            assert waiting.returncode == 0, output + member.log
            # The second one does not wait again.
            assert member.smbclient(user, "ls").returncode == 0, member.log
            found = member.kinit(user, cache)
            assert found.returncode == 0, found.stderr
            ticket = member.smbclient(user, "ls", cache=cache)
            assert ticket.returncode == 0, ticket.stdout + ticket.stderr + member.log
            who = ["-U", f"{WORKGROUP}\\{user}%{domain.password}"]
            names = domain.command("client", "rpcclient", SHARE.split("/")[2], *who, "-c", f"lookupnames {user}")
            assert "S-1-5-21-" in names.stdout, names.stdout + names.stderr
        logged_on.write()
    logged_on.close()
    assert "Traceback" not in member.log


def test_the_password_is_changed_by_the_one_that_is_there(member: Member) -> None:
    """The other one does not know the new password until it replicates: it gets the one before."""
    domain = member.domain
    first, second = domain.controllers
    with killed(first):
        changed = member.run("rotate")
        assert changed.returncode == 0, changed.stderr
    with hanging(second):
        done = member.smbclient("alice", "ls")
        assert done.returncode == 0, done.stdout + member.log
    domain.replicate()
    assert member.run("status").returncode == 0
