"""The common parts of all attacks: the server, its users and shares, the innocent client, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from smb3server.client.protocol import Client, open_tcp
from smb3server.client.protocol.tree import Tree
from smbdirect.message_transport import MessageTransport
from tools.cluster.certificates import Authority
from tools.support import memory_file_system, server_process
from tools.support.innocent import PASSWORD, USER
from tools.support.ports import free_port
from tools.support.server_process import ServerProcess

MOST_PROCESSOR = 0.1
"""Seconds of the server's processor time that may pass between an innocent client's ECHO and the answer."""
MOST_RESIDENT = 200 << 20
MOST_LOG = 64 << 10
"""Bytes that one attack may add to the log."""
SECONDS = 5.0
"""Seconds that a continuing attack lasts."""
TIME_LIMIT = 60.0
USERS = {"alice": "games", "bob": "news", "carol": "", "dave": ""}
"""Accounts, and the users of the host that they act as if the server runs as root."""
_SHARE_BYTES, _SHARE_FILES = 3 << 30, 400_000


@dataclass
class Target:
    """The server under attack."""

    server: ServerProcess
    share: Path
    """Folder of the share "data"."""
    seconds: float = SECONDS
    doors: dict[str, int] = field(default_factory=dict)
    """TCP ports of the sections, by the names that stand for them there."""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        """TCP port of SMB."""
        return self.server.port

    async def log_on(self, user: str, share: str = "data") -> Tree:
        """Connect with the project's client. Raises ``ServerError``, ``ConnectionLost``, ``OSError``."""
        session = await (await self.connect()).log_on(user, password(user))
        return await session.tree_connect(share)

    async def connect(self, transport: MessageTransport | None = None) -> Client:
        """Connect by TCP, or over ``transport``. ``disconnect`` ends these connections."""
        client = await Client.connect(transport or await open_tcp("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def disconnect(self) -> None:
        """End all connections made by ``connect``."""
        for client in self._clients:
            client.transport.abort("the attack ends")
        await asyncio.sleep(0)

    def fail(self, text: str) -> None:
        """Record that the attack achieved something forbidden."""
        self.failures.append(text)

    def note(self, text: str) -> None:
        """Record a remark for the report."""
        self.notes.append(text)

    def until(self) -> float:
        """Return the monotonic time at which an attack that starts now must end."""
        return time.monotonic() + self.seconds


def password(user: str) -> str:
    """Return the password of an account of the lab."""
    return f"{user}-pw"


Attack = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One attack. ``prepare`` runs before it and is not measured."""

    name: str
    attack: Attack
    says: str
    prepare: Attack | None = None
    config: str = ""
    """Lines for the section [server]."""
    wrapper: tuple[str, ...] = ()
    sections: str = ""
    """Further sections. ``$FOLDER`` stands for the folder of the configuration, ``$`` and capitals for a free port."""
    alone: bool = False
    """Whether it needs a network namespace of its own: its ports cannot be chosen."""
    needs: tuple[str, ...] = ()
    """Optional modules."""

    @property
    def lacks(self) -> list[str]:
        """The modules that are not installed here."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


CASES: dict[str, Case] = {}


def case(
    *,
    prepare: Attack | None = None,
    config: str = "",
    wrapper: tuple[str, ...] = (),
    sections: str = "",
    alone: bool = False,
    needs: tuple[str, ...] = (),
) -> Callable[[Attack], Attack]:
    """Register an attack under its function's name. The function's docstring describes it. See ``Case``."""

    def register(attack: Attack) -> Attack:
        name = attack.__name__
        says = " ".join((attack.__doc__ or "").split())
        CASES[name] = Case(name, attack, says, prepare, config, wrapper, sections, alone, needs)
        return attack

    return register


@dataclass
class Verdict:
    """The effects of an attack on the server and on the innocent client."""

    name: str
    processor: float = 0.0
    """Largest processor time of the server between an ECHO and its answer, in seconds."""
    wall: float = 0.0
    echoes: int = 0
    resident: int = 0
    log: int = 0
    tracebacks: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """Return the limits that were exceeded."""
        found = list(self.failures)
        if self.processor > MOST_PROCESSOR:
            found.append(f"an innocent ECHO cost {self.processor * 1e3:.0f} ms of the server's processor time")
        if self.resident > MOST_RESIDENT:
            found.append(f"the server held {self.resident >> 20} MiB")
        if self.log > MOST_LOG:
            found.append(f"the log grew by {self.log >> 10} KiB")
        if self.tracebacks:
            found.append(f"{self.tracebacks} tracebacks in the log")
        if not self.echoes:
            found.append("the innocent client had no answer at all")
        return found

    def __str__(self) -> str:
        return (
            f"{self.name:24} ECHO {self.processor * 1e3:6.1f} ms processor {self.wall * 1e3:7.1f} ms wall"
            f" ({self.echoes:4})  memory {self.resident >> 20:4} MiB  log {self.log:6} bytes"
        )


def run(chosen: Case, seconds: float = SECONDS) -> Verdict:
    """Start a server, attack it, and return the verdict."""
    with _target(chosen, seconds) as target:
        return asyncio.run(_attack(chosen, target))


async def _attack(chosen: Case, target: Target) -> Verdict:
    server, verdict = target.server, Verdict(chosen.name)
    if chosen.prepare is not None:
        await chosen.prepare(target)
    log = server.log_size()
    server.forget_peak()
    innocent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.support.innocent", str(target.port), str(server.pid)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert innocent.stdout is not None
    first = await innocent.stdout.readline()
    try:
        if first == b"ready\n":
            async with asyncio.timeout(TIME_LIMIT):
                await chosen.attack(target)
            # Work that the attack has started may still be running.
            await asyncio.sleep(0.3)
    except TimeoutError:
        verdict.failures.append(f"the attack has not come to its end after {TIME_LIMIT:.0f} s")
    finally:
        await target.disconnect()
        try:
            async with asyncio.timeout(TIME_LIMIT):
                output, _ = await innocent.communicate(b"\n")
        except TimeoutError:
            innocent.kill()
            output = b""
            await innocent.wait()
    seen = json.loads((first if first != b"ready\n" else output) or b'{"lost": "no answer"}')
    verdict.processor, verdict.wall = seen.get("most_processor", 0.0), seen.get("slowest", 0.0)
    verdict.echoes = seen.get("echoes", 0)
    verdict.failures += target.failures
    verdict.notes += target.notes
    if seen["lost"]:
        verdict.failures.append(f"the innocent client: {seen['lost']}")
    if not server.alive():
        verdict.failures.append("the server has ended")
        return verdict
    verdict.resident = server.peak_resident()
    verdict.log = server.log_size() - log
    verdict.tracebacks = server.log_text(log).count("Traceback")
    return verdict


@contextlib.contextmanager
def _target(chosen: Case, seconds: float) -> Iterator[Target]:
    root = os.geteuid() == 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
        folder.chmod(0o755)
        share = folder / "data"
        share.mkdir()
        if root:
            stack.enter_context(memory_file_system.mounted(share, _SHARE_BYTES, _SHARE_FILES))
            shutil.chown(share, "nobody", "nogroup")
        share.chmod(0o777)
        config = '[server]\nlisten = ["127.0.0.1"]\nport = 0\n'
        config += "" if "guest" in chosen.config else "guest = true\n"
        config += "" if "rdma" in chosen.config else 'rdma = "iwarp"\nrdma_port = 0\n'
        config += chosen.config
        for name, options in (("data", ""), ("guests", "guest = true\n"), ("readonly", "read_only = true\n")):
            config += f'[[share]]\nname = "{name}"\npath = "{share}"\n{options}'
        for user, host_user in (*USERS.items(), (USER, "")):
            given = PASSWORD if user == USER else password(user)
            config += f'[[user]]\nname = "{user}"\npassword = "{given}"\n'
            config += f'unix_user = "{host_user}"\n' if root and host_user else ""
        config += "[witness]\nendpoint_mapper_port = 0\n"
        sections = Template(chosen.sections)
        doors = {name: free_port() for name in sections.get_identifiers() if name != "FOLDER"}
        if "certificate" in chosen.sections:
            Authority(folder).named("page")
        if "keytab" in chosen.sections:
            # Takes optional modules.
            from tools.attacks.forging import write_account

            write_account(folder)
        config += sections.substitute({"FOLDER": folder, **doors})
        server = stack.enter_context(server_process.running(folder, config, wrapper=chosen.wrapper))
        yield Target(server, share, seconds, doors)
