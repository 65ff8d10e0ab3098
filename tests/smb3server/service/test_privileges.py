"""What a server process may do: no more than its configuration takes, whoever it runs as; users act as themselves."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smb3server.admin import socket as admin_socket
from smb3server.client.protocol import ServerError, Tree
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.reader import read_file
from smb3server.process.capabilities import Capability, names
from smb3server.service.privileges import Privileges, needed, start_only
from smb3server.settings.cluster import ServiceConfig, VirtualAddress
from smb3server.wire.create import CreateDisposition
from smb3server.wire.status import NtStatus
from tests.lab.served import ROOT, Served, open_up, run, served

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="giving up root's rights needs root")
OWN, ALICE, BOB = "games", "news", "uucp"
"""Users of the host: whom the server runs as, and whom users act as."""
ALWAYS = (
    Capability.CHOWN
    | Capability.DAC_OVERRIDE
    | Capability.DAC_READ_SEARCH
    | Capability.FOWNER
    | Capability.FSETID
    | Capability.SETGID
    | Capability.SETUID
)
CONFIGURATION = """[server]
{server}
[[share]]
name = "data"
path = "{share}"
[[user]]
name = "alice"
password = "pw"
unix_user = "{alice}"
[[user]]
name = "bob"
password = "pw"
unix_user = "{bob}"
"""


def configured(folder: Path, server: str = "") -> Path:
    open_up(folder)
    share = folder / "share"
    share.mkdir()
    share.chmod(0o777)
    file = folder / "server.toml"
    file.touch(0o600)
    file.write_text(CONFIGURATION.format(server=server, share=share, alice=ALICE, bob=BOB))
    return file


def test_what_is_needed_follows_from_the_configuration() -> None:
    config = Config()
    assert needed(config) == ALWAYS | Capability.SYS_ADMIN
    config.xattrs = "user"
    assert needed(config) == ALWAYS
    config.rdma = "iwarp"
    assert needed(config) == ALWAYS
    config.rdma = "iwarp,roce"
    assert needed(config) == ALWAYS | Capability.NET_RAW
    config.rdma = "verbs"
    assert needed(config) == ALWAYS | Capability.IPC_LOCK
    config.drop_privileges = OWN
    assert needed(config) == Capability.IPC_LOCK
    config.drop_privileges = ""
    config.rdma = "auto"
    assert needed(config) == ALWAYS | Capability.IPC_LOCK | Capability.NET_RAW
    config.rdma = "off"
    config.cluster.services.append(ServiceConfig("files", [], []))
    assert needed(config) == ALWAYS
    config.cluster.services.append(ServiceConfig("more", [VirtualAddress.parse("192.0.2.1/24@eth0")], []))
    assert needed(config) == ALWAYS | Capability.NET_RAW | Capability.NET_ADMIN
    assert not (needed(config) | start_only(config)) & Capability.SYS_RESOURCE


@root_only
def test_what_is_not_needed_is_given_up(tmp_path: Path) -> None:
    """In all threads, also those that served somebody: a worker, the store of persistent opens."""
    file = configured(tmp_path)
    file.write_text(file.read_text().replace("[[user]]", "continuous_availability = true\n[[user]]", 1))
    with served(tmp_path, "--config", str(file)) as server:

        async def use() -> None:
            async with server.tree("alice") as tree:
                opened = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
                await tree.write(opened, 0, b"x")
                await tree.flush(opened)
                await tree.close(opened)

        asyncio.run(use())
        threads = server.threads()
        assert len(threads) > 1
        wanted = f"{int(ALWAYS | Capability.SYS_ADMIN):016x}"
        for status in threads:
            assert status["CapPrm"] == status["CapEff"] == wanted, status["Name"]
            assert status["NoNewPrivs"] == "1"
            assert not int(status["CapInh"], 16) and not int(status["CapAmb"], 16) and not int(status["CapBnd"], 16)
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert [line.split()[4:6] for line in limits.splitlines() if "core file" in line] == [["0", "0"]]
        report = server.report()
        assert report["capabilities"] == names(ALWAYS | Capability.SYS_ADMIN)
        assert report["no_new_privs"] is True and report["dumpable"] is False and report["core_limit"] == 0
        assert report["user"] == "root" and report["sandbox"] is False
        shown = subprocess.run(
            [sys.executable, "-m", "smb3server", "status", "--state", server.state],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "500"},
            cwd=ROOT,
            check=True,
        )
        assert (
            f"process: runs as root; acts as users; {', '.join(names(ALWAYS | Capability.SYS_ADMIN))};" in shown.stdout
        )


VERBS = """
import asyncio, json, logging, threading
from smb3server.process import capabilities
from smb3server.config.model import Config
from smb3server.service.privileges import Privileges, in_force
from smbdirect.providers.verbs.thread import VerbsThread

logging.basicConfig(format="%(message)s", level=logging.WARNING)
config = Config()
config.rdma = "verbs"
privileges = Privileges(config)
privileges.restrict()
loop = asyncio.new_event_loop()
thread = VerbsThread(loop)
at_first = thread.call(capabilities.get)
privileges.drop_start_privileges()
print(json.dumps([at_first, thread.call(capabilities.get), capabilities.get(), in_force().capabilities]))
"""


@root_only
def test_the_thread_of_verbs_has_what_is_its_own_from_its_beginning_on() -> None:
    """Linux takes nothing from it any more once its credentials change; ports are bound on it."""
    done = subprocess.run(
        [sys.executable, "-c", VERBS],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=True,
    )
    at_first, at_last, main, shown = json.loads(done.stdout)
    own = Capability.IPC_LOCK | Capability.NET_BIND_SERVICE | Capability.DAC_OVERRIDE
    assert at_first == at_last == [own, own, 0]
    everyone = ALWAYS | Capability.SYS_ADMIN | Capability.IPC_LOCK
    assert main == [everyone, everyone, 0]
    assert shown == names(everyone | own)
    assert not done.stderr


def started_as_root(folder: Path) -> tuple[list[str], list[str]]:
    """Options and what the server is run with: it changes user by itself."""
    return ["--config", str(configured(folder, f'run_as = "{OWN}"'))], []


def started_as_user(folder: Path) -> tuple[list[str], list[str]]:
    """As systemd does with User= and AmbientCapabilities=."""
    file = configured(folder)
    user = pwd.getpwnam(OWN)
    os.chown(file, user.pw_uid, user.pw_gid)
    (folder / "state").mkdir(mode=0o700)
    os.chown(folder / "state", user.pw_uid, user.pw_gid)
    wanted = ",".join("+" + name.removeprefix("CAP_").lower() for name in names(ALWAYS | Capability.SYS_ADMIN))
    setpriv = ["setpriv", "--reuid", OWN, "--regid", str(user.pw_gid), "--init-groups"]
    return ["--config", str(file)], [*setpriv, "--inh-caps", f"-all,{wanted}", "--ambient-caps", f"-all,{wanted}"]


@root_only
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize("started", [started_as_root, started_as_user])
def test_users_act_as_themselves_on_a_server_that_is_not_root(tmp_path: Path, started: object) -> None:
    assert callable(started)
    options, prefix = started(tmp_path)
    alice, bob, own = pwd.getpwnam(ALICE), pwd.getpwnam(BOB), pwd.getpwnam(OWN)
    share = tmp_path / "share"
    (share / "roots").mkdir(mode=0o700)
    (share / "roots" / "f").write_bytes(b"root's")
    (share / "secret").write_bytes(b"root's")
    (share / "secret").chmod(0o600)
    with served(tmp_path, *options, prefix=prefix) as server:
        for status in server.threads():
            assert status["Uid"].split() == [str(own.pw_uid)] * 4
            assert int(status["CapPrm"], 16) == ALWAYS | Capability.SYS_ADMIN
        assert server.report()["user"] == OWN and server.report()["acts_as_users"] is True

        async def use() -> None:
            async with server.tree("alice") as tree, server.tree("bob") as other:
                await check(tree, other)

        async def check(tree: Tree, other: Tree) -> None:
            opened = await tree.create("hers", READ_WRITE, CreateDisposition.CREATE, attributes=2)
            await tree.write(opened, 0, b"hers")
            await tree.flush(opened)
            stat = (share / "hers").stat()
            assert (stat.st_uid, stat.st_gid) == (alice.pw_uid, alice.pw_gid)
            assert "trusted.smb3.meta" in os.listxattr(share / "hers")
            assert bytes(await tree.read(opened, 0, 10)) == b"hers"
            await tree.close(opened)
            (share / "hers").chmod(0o600)
            for whose, path in ((other, "hers"), (tree, "secret"), (tree, "roots/f"), (other, "roots/new")):
                for disposition in (CreateDisposition.OPEN, CreateDisposition.OPEN_IF):
                    with pytest.raises(ServerError) as caught:
                        await whose.create(path, READ_WRITE, disposition)
                    assert caught.value.status == NtStatus.ACCESS_DENIED, path
            assert not (share / "roots" / "new").exists()
            opened = await other.create("his:stream", READ_WRITE, CreateDisposition.CREATE)
            await other.write(opened, 0, b"in a stream")
            await other.close(opened)
            assert (share / "his").stat().st_uid == bob.pw_uid

        asyncio.run(use())


@root_only
def test_running_as_a_user_takes_places_of_his(tmp_path: Path) -> None:
    file = configured(tmp_path, f'run_as = "{OWN}"')
    (tmp_path / "state").mkdir()
    ended = run("--config", str(file), "--port", "0", "--state", str(tmp_path / "state"))
    assert ended.returncode == 2
    assert f"remedy: chown -R {OWN}: {tmp_path / 'state'}" in ended.stderr


@root_only
def test_running_as_nobody_there_is(tmp_path: Path) -> None:
    file = configured(tmp_path, 'run_as = "no-such-user"')
    ended = run("--config", str(file), "--port", "0")
    assert ended.returncode == 2
    assert "run_as: this machine has no user no-such-user" in ended.stderr


INSIDE = """
from smb3server.backends.local import impersonate
from smb3server.process import capabilities
from smb3server.backends.base import User
from smb3server.process.capabilities import Capability
helpful = impersonate.OF_FILES | Capability.SYS_RESOURCE | Capability.SYS_ADMIN
before = capabilities.get()
assert before.effective & helpful and impersonate.may_act()
for user in (User(54321, 54321, (54321,)), None):
    for acting in (impersonate.ActAs(user), impersonate.SpaceOf(user)):
        with acting:
            assert not capabilities.get().effective & helpful
        assert capabilities.get() == before
with impersonate.ActAs(User(0, 0, (0,))):
    pass
assert capabilities.get() == before
"""


@root_only
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_no_capability_helps_users_of_a_server_that_is_not_root() -> None:
    """setfsuid(2) takes capabilities away only from a thread whose file-system uid was 0."""
    every = ",".join("+" + name.removeprefix("CAP_").lower() for name in names(ALWAYS | Capability.SYS_ADMIN))
    prefix = ["setpriv", "--reuid", OWN, "--regid", OWN, "--init-groups"]
    prefix += ["--inh-caps", f"-all,{every}", "--ambient-caps", f"-all,{every}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*prefix, sys.executable, "-c", INSIDE], check=True, env=environment, cwd=ROOT)


def test_acting_as_users_takes_capabilities_not_root() -> None:
    """A process without CAP_SETUID acts as nobody else, and says so, whatever its uid."""
    script = (
        "import os\n"
        "from smb3server.process import capabilities\n"
        "from smb3server.process.capabilities import Capability, Sets\n"
        "kept = capabilities.get().permitted & ~Capability.SETUID\n"
        "capabilities.Change(Sets(kept, kept)).make()\n"
        "from smb3server.auth.users import Account\n"
        "from smb3server.config.error import ConfigError\n"
        "from smb3server.config.sources.host_users import check_host_users\n"
        "from smb3server.config.model import Config\n"
        "from smb3server.config.values import unix_user\n"
        "from smb3server.backends.local.impersonate import may_act\n"
        "assert not may_act()\n"
        "name = 'daemon' if os.geteuid() != 1 else 'root'\n"
        "account, config = Account('a', b'', unix_user(name)), Config(allow_root=True)\n"
        "try:\n    check_host_users(config, [account])\n"
        "except ConfigError as error:\n    assert 'CAP_SETUID' in str(error)\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT)


def test_namespaces_of_attributes_are_known(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[server]\nxattrs = "system"\n')
    with pytest.raises(ConfigError, match="xattrs: must be one of auto, trusted, user, not"):
        read_file(file)


ORDINARY = """
import os, sys
from smb3server.backends.base import Disposition, OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.config.model import Config
from smb3server.service.privileges import Privileges, in_force
os.setgroups([])
os.setresgid(54321, 54321, 54321)
os.setresuid(54321, 54321, 54321)
Privileges(Config()).restrict()
assert in_force().dumpable is False and in_force().capabilities == [] and not in_force().acts_as_users
backend = LocalBackend(sys.argv[1])
for stream in ("", "stream"):
    handle = backend.open(OpenRequest(("f",), stream, Disposition.OPEN_IF, read=True, write=True))
    handle.write_from([b"content"], 0)
    handle.flush()
    handle.close()
handle = backend.open(OpenRequest(("f",)))
handle.truncate(3)
handle.set_attributes(2)
handle.flush()
handle.link(("second",), False)
handle.rename(("first",), False)
assert handle.path == ("first",) and handle.info().attributes & 2
assert [entry.name for entry in handle.streams()] == ["", "stream"]
handle.unlink()
handle.close()
handle = backend.open(OpenRequest((), directory=True))
assert "second" in [entry.name for entry in handle.scan()]
handle.close()
print("served")
"""


@root_only
def test_files_are_reached_by_an_ordinary_user_that_is_not_dumpable(tmp_path: Path) -> None:
    """/proc/self belongs to root then; what is opened without data access is reached through /proc/self/fd."""
    open_up(tmp_path)
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, tmp_path],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == "served\n", done.stderr


@root_only
def test_who_owns_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    """Though the owner gave up as much, and is not dumpable."""
    file = configured(tmp_path)
    with served(tmp_path, "--config", str(file)) as server:
        ended = run("--config", str(file), "--listen", "127.0.0.1", "--port", str(server.port))
        assert ended.returncode == 1
        assert f"({server.process.pid})" in ended.stderr or f" {server.process.pid}" in ended.stderr


@root_only
def test_a_server_that_drops_its_privileges_is_one_user(tmp_path: Path) -> None:
    open_up(tmp_path)
    share = tmp_path / "share"
    share.mkdir(mode=0o755)
    entry = pwd.getpwnam(OWN)
    os.chown(share, entry.pw_uid, entry.pw_gid)
    (share / "roots").touch(mode=0o600)
    options = ("--share", f"data={share}", "--user", "a:longpassword")

    async def body(server: Served) -> None:
        async with server.tree("a", "longpassword") as tree:
            await tree.close(await tree.create("new", READ_WRITE, CreateDisposition.CREATE))
            with pytest.raises(ServerError) as caught:
                await tree.create("roots", READ_WRITE, CreateDisposition.OPEN)
            assert caught.value.status == NtStatus.ACCESS_DENIED

    with served(tmp_path, *options, "--drop-privileges") as server:
        asyncio.run(body(server))
        for thread in server.threads():
            assert set(thread["Uid"].split()) == {str(entry.pw_uid)}
            assert int(thread["CapPrm"], 16) == int(thread["CapBnd"], 16) == 0
        hidden = not os.stat("/root").st_mode & 0o001 and sys.prefix.startswith("/root")
        assert not hidden or any("may not read Python" in line for line in server.lines)
    assert (share / "new").stat().st_uid == entry.pw_uid


@root_only
def test_root_and_users_have_servers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = tmp_path / "smb3server"
    roots.mkdir()
    monkeypatch.setattr(admin_socket, "ROOTS_RUNTIME_DIRECTORY", roots)
    monkeypatch.setenv(admin_socket.RUNTIME_VARIABLE, "")
    for user in (OWN, ALICE):
        entry = pwd.getpwnam(user)
        Privileges(Config())._hand_over_places(entry)
        place = tmp_path / f"smb3server-{user}"
        assert place.stat().st_uid == entry.pw_uid
        assert os.environ[admin_socket.RUNTIME_VARIABLE] == str(place)

    async def scene() -> None:
        os.chown(place, 0, 0)
        admin = admin_socket.AdminSocket(place / "1.sock", {"ping": lambda request: {"pid": 1}})
        await admin.start()
        assert await asyncio.to_thread(admin_socket.running) == [admin.path]
        await admin.close()

    asyncio.run(scene())
