"""The two servers: Samba's smbd with its own configuration and databases, and this project's server.

Each runs in a temporary folder and on a port of 127.0.0.1. Both act as users of the host, which requires root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tools.access_differential.player import Login
from tools.support import server_process
from tools.support.ports import free_port

LOGINS = (Login("games", "Passw0rd-1", "S-1-22-2-60"), Login("news", "Passw0rd-2", "S-1-22-2-9"))
"""Two users that exist on every Debian system, and own nothing that matters."""
SHARE = "data"
_START_SECONDS = 30.0
_SMBD_FOLDERS = ("private", "lock", "state", "cache", "pid", "ncalrpc", "binddns")

# Both judge by descriptors alone if possible: "ignore system acls" keeps Samba from mixing modes in.
_SMB_CONF = """\
[global]
workgroup = WORKGROUP
netbios name = JUDGE
server role = standalone server
smb ports = {port}
interfaces = lo
bind interfaces only = yes
private dir = {folder}/private
lock directory = {folder}/lock
state directory = {folder}/state
cache directory = {folder}/cache
pid directory = {folder}/pid
ncalrpc dir = {folder}/ncalrpc
binddns dir = {folder}/binddns
passdb backend = tdbsam:{folder}/private/passdb.tdb
log file = {folder}/log.smbd
max log size = 10000
log level = 1
load printers = no
printing = bsd
disable spoolss = yes
disable netbios = yes
server min protocol = SMB2_02
oplocks = no
level2 oplocks = no
smb2 leases = no
map to guest = never
[{share}]
path = {path}
read only = no
vfs objects = acl_xattr streams_xattr
acl_xattr:ignore system acls = yes
ea support = yes
store dos attributes = yes
map archive = no
map readonly = no
map hidden = no
map system = no
"""


def missing() -> str:
    """Return why the comparison cannot run here; "" if it can."""
    if shutil.which("smbd") is None and not Path("/usr/sbin/smbd").exists():
        return "smbd is not installed (package samba)"
    if not any(Path("/usr/lib").glob("*/samba/vfs/acl_xattr.so")):
        return "Samba's module acl_xattr is not installed (package samba-vfs-modules)"
    if os.geteuid() != 0:
        return "needs root: both servers act as users of the host"
    if not {login.name for login in LOGINS} <= {entry.pw_name for entry in pwd.getpwall()}:
        return f"the host lacks a user: {' or '.join(login.name for login in LOGINS)}"
    return ""


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/sbin/{name}"


def _open_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    path.chmod(0o777)
    return path


@contextlib.contextmanager
def running_samba(folder: Path, options: str = "") -> Iterator[tuple[int, Path]]:
    """Run smbd and yield its port and the share's folder. Raises ``RuntimeError`` if it does not start.

    ``options``: further lines for the share in smb.conf."""
    folder.mkdir(mode=0o755)
    path = _open_folder(folder / "share")
    for name in _SMBD_FOLDERS:
        (folder / name).mkdir(mode=0o755)
    port = free_port()
    configuration = folder / "smb.conf"
    configuration.write_text(_SMB_CONF.format(folder=folder, port=port, path=path, share=SHARE) + options)
    for login in LOGINS:
        subprocess.run(
            [_program("pdbedit"), "-s", str(configuration), "-a", "-t", "-u", login.name],
            input=f"{login.password}\n{login.password}\n",
            text=True,
            check=True,
            capture_output=True,
        )
    with (folder / "output").open("wb") as output:
        # On SIGTERM smbd ends its whole process group, so it gets a group of its own.
        process = subprocess.Popen(
            [_program("smbd"), "--foreground", "--no-process-group", "-s", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(port, process, folder / "output")
        yield port, path
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # What smbd starts for RPC, on demand, is in a session of its own and stays. It writes until it ends.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            helper = int((folder / "pid" / "samba-dcerpcd.pid").read_text())
            os.kill(helper, signal.SIGTERM)
            for _ in range(50):
                os.kill(helper, 0)
                time.sleep(0.1)


def _wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"smbd did not start: {output.read_text(errors='replace')[-2000:]}")


def _own_config(path: Path, *, act_as_users: bool) -> str:
    text = f'[server]\nlisten = ["127.0.0.1"]\nport = 0\n[[share]]\nname = "{SHARE}"\npath = "{path}"\n'
    for login in LOGINS:
        text += f'[[user]]\nname = "{login.name}"\npassword = "{login.password}"\n'
        text += f'unix_user = "{login.name}"\n' if act_as_users else ""
    return text


@contextlib.contextmanager
def running_own(folder: Path, *, act_as_users: bool) -> Iterator[tuple[int, Path]]:
    """Run this project's server and yield its port and the share's folder. Raises ``ServerFailed``.

    With ``act_as_users`` each account is a user of the host, and the kernel checks access, too. Without it both
    accounts act as one user, and only descriptors separate them.
    """
    folder.mkdir(mode=0o755)
    path = _open_folder(folder / "share")
    if not act_as_users:
        shutil.chown(path, "nobody", "nogroup")
    with server_process.running(folder, _own_config(path, act_as_users=act_as_users)) as server:
        yield server.port, path
        if "Traceback" in server.log_text():
            raise RuntimeError(f"the server's log holds a traceback:\n{server.log_text()[-4000:]}")
