"""A share on a FUSE file system that nobody here wrote (bindfs), served as by the packaged unit: as a user of its own,
with the unit's capabilities, filter of system calls and sandbox. smbclient is the client."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.served import Served, open_up, served
from tests.lab.unit import NUMBERS, as_user, confined

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="needs root and /dev/fuse"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("bindfs", "smbclient", "setpriv", "systemd-analyze")),
        reason="needs bindfs, smbclient, setpriv and systemd-analyze",
    ),
    pytest.mark.skipif(not NUMBERS.exists(), reason="needs linux-libc-dev of x86-64"),
]
SERVER, USER = "daemon", "news"
"""Users of the host."""
WALK = """mkdir folder; cd folder; put {local} file; ls; allinfo file; get file {back}; setmode file +r;
setmode file -r; rename file moved; put {local} moved; ls; del moved; cd ..; rmdir folder; ls"""


@contextlib.contextmanager
def mounted(folder: Path, point: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["bindfs", "-f", str(folder), str(point)]) as process:
        try:
            until = time.monotonic() + 30
            while not os.path.ismount(point):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.02)
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            subprocess.run(["umount", "-l", str(point)], check=False)
            process.terminate()


@contextlib.contextmanager
def serving(place: Path) -> Iterator[tuple[Served, subprocess.Popen[bytes]]]:
    open_up(place)
    user, owner = pwd.getpwnam(SERVER), pwd.getpwnam(USER)
    server = place / "server"
    for folder in (place / "below", place / "fast", place / "late", server):
        folder.mkdir()
    for folder in (place / "below", place / "fast"):
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        folder.chmod(0o700)
    file = server / "server.toml"
    file.touch(0o600)
    text = f'[server]\nsandbox = true\n[[user]]\nname = "u"\npassword = "pw"\nunix_user = "{USER}"\n'
    for name in ("late", "fast"):
        text += f'[[share]]\nname = "{name}"\npath = "{place / name}"\n'
    file.write_text(text)
    for path in (server, file):
        os.chown(path, user.pw_uid, user.pw_gid)
    with (
        mounted(place / "below", place / "late") as storage,
        served(server, "--config", str(file), prefix=[*as_user(SERVER), *confined()]) as running,
    ):
        yield running, storage


def start(running: Served, share: str, commands: str) -> subprocess.Popen[str]:
    where = ["smbclient", f"//127.0.0.1/{share}", "-p", str(running.port), "-U", "u%pw", "-t", "300"]
    return subprocess.Popen(
        [*where, "-c", commands.replace("\n", " ")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(client: subprocess.Popen[str]) -> None:
    output, _ = client.communicate(timeout=300)
    assert client.returncode == 0, output
    assert "NT_STATUS" not in output, output


def test_a_share_on_fuse_is_served_as_by_the_unit(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(300_000))
    with serving(tmp_path) as (running, storage):
        status = running.status()
        assert status["Uid"].split()[0] == str(pwd.getpwnam(SERVER).pw_uid)
        assert status["Seccomp_filters"] == "2"
        walk = WALK.format(local=local, back=tmp_path / "back")
        end(start(running, "late", walk))
        assert (tmp_path / "back").read_bytes() == local.read_bytes()
        end(start(running, "late", f"put {local} kept"))
        kept = (tmp_path / "below" / "kept").stat()
        assert kept.st_uid == pwd.getpwnam(USER).pw_uid
        storage.send_signal(signal.SIGSTOP)
        waiting = start(running, "late", f"get kept {tmp_path / 'got'}; put {local} during")
        end(start(running, "fast", walk))
        assert waiting.poll() is None
        storage.send_signal(signal.SIGCONT)
        end(waiting)
        assert (tmp_path / "got").read_bytes() == (tmp_path / "below" / "during").read_bytes() == local.read_bytes()
        # The threads of slow storage have what the unit gives, and nothing else.
        assert len(running.threads()) > 1
        assert {thread["Seccomp_filters"] for thread in running.threads()} == {"2"}
        assert {thread["CapEff"] for thread in running.threads()} == {status["CapEff"]}
