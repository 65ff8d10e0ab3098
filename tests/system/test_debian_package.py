"""The Debian package in a clean Debian: installed, started as by its unit, used, upgraded, removed and purged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.debian import ROOT, clean_debian, run

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap"),
]

NAMESPACE = f"smbdeb{os.getpid()}"
STATE, CONFIGURATION = "var/lib/smb3server", "etc/smb3server/smb3server.toml"
CONFIGURED = ("--config", f"/{CONFIGURATION}")
PASSWORD = "well-kept-secret"
AUDIT = "/var/log/smb3server/audit.log"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(run("tools/packaging/build_deb.sh", tmp_path_factory.mktemp("deb")).split()[-1])


@pytest.fixture(scope="module")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a later version."""
    folder = tmp_path_factory.mktemp("newer")
    run("dpkg-deb", "-R", package, folder / "root")
    control = folder / "root" / "DEBIAN" / "control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+1", control.read_text(), flags=re.MULTILINE))
    run("dpkg-deb", "-Znone", "-b", folder / "root", folder / "newer.deb")
    return folder / "newer.deb"


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clean Debian of this test's own, and a network with nothing but loopback."""
    base = clean_debian()
    root = base.with_name(f"try-{os.getpid()}")
    run("cp", "-a", "--reflink=auto", base, root)
    run("ip", "netns", "add", NAMESPACE)
    run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
    try:
        yield root
    finally:
        run("ip", "netns", "del", NAMESPACE)
        run("rm", "-rf", "--one-file-system", root)


def chrooted(root: Path, *command: str) -> list[str]:
    """A command line that runs a program in the Debian, as the process that is started."""
    mounts = 'mount --bind /proc "$0/proc" && mount -t tmpfs tmpfs "$0/tmp" && exec chroot "$0" "$@"'
    place = ["ip", "netns", "exec", NAMESPACE, "unshare", "--mount", "--propagation=private"]
    return [*place, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", mounts, str(root), *command]


def inside(root: Path, *command: str) -> str:
    return run(*chrooted(root, *command))


def install(root: Path, package: Path) -> str:
    shutil.copy(package, root / "root" / "package.deb")
    return inside(root, "dpkg", "-i", "/root/package.deb")


def unit(root: Path, key: str) -> str:
    text = (root / "lib/systemd/system/smb3server.service").read_text()
    found = re.search(rf"^{key}=(.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def as_the_unit(root: Path) -> list[str]:
    """The server's command line, as its unit starts it: as its user, with these capabilities and nothing else."""
    names = [name.removeprefix("CAP_").lower() for name in unit(root, "AmbientCapabilities").split()]
    capabilities = ",".join(f"+{name}" for name in names)
    inside(root, "install", "-d", "-m", "700", "-o", "smb3server", "/run/smb3server")
    user = ["setpriv", "--reuid=smb3server", "--regid=smb3server", "--init-groups", "--no-new-privs"]
    user += [f"--bounding-set=-all,{capabilities}", f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
    return chrooted(root, *user, "env", "RUNTIME_DIRECTORY=/run/smb3server", *unit(root, "ExecStart").split())


@contextmanager
def started(root: Path) -> Iterator[None]:
    log = root / "root" / "log"
    with log.open("w") as out, subprocess.Popen(as_the_unit(root), stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while "\nready tcp 0.0.0.0:445" not in log.read_text():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


def smbclient(command: str) -> str:
    where = ["ip", "netns", "exec", NAMESPACE, "smbclient", "//127.0.0.1/data", "-U", f"alice%{PASSWORD}"]
    return run(*where, "-c", command)


def mode(root: Path, path: str) -> str:
    return inside(root, "stat", "-c", "%a %U %G", f"/{path}").strip()


def test_the_life_of_the_package(debian: Path, package: Path, newer: Path, tmp_path: Path) -> None:
    before = {path.name for folder in ("usr/bin", "usr/sbin") for path in (debian / folder).iterdir()}
    said = install(debian, package)
    assert "add a [[share]] to /etc/smb3server/smb3server.toml" in said
    after = {path.name for folder in ("usr/bin", "usr/sbin") for path in (debian / folder).iterdir()}
    assert after - before == {"smb3server"}
    assert mode(debian, STATE) == "700 smb3server smb3server"
    assert mode(debian, f"{STATE}/users") == "600 smb3server smb3server"
    assert mode(debian, "var/log/smb3server") == "750 smb3server smb3server"
    assert mode(debian, CONFIGURATION) == "640 root smb3server"
    version = inside(debian, "setpriv", "--reuid=nobody", "--clear-groups", "smb3server", "--version")
    assert "(in use)" in version
    for part in ("man/man1/smb3server-status.1.gz", "bash-completion/completions/smb3server"):
        assert (debian / "usr/share" / part).is_file()

    # The configuration as it comes is right, and shares nothing.
    server = ["setpriv", "--reuid=smb3server", "--regid=smb3server", "--init-groups", "smb3server"]
    assert json.loads(inside(debian, *server, "check", "--json", *CONFIGURED))["ok"]
    with started(debian):
        assert json.loads(inside(debian, "smb3server", "share", "list", "--json")) == []

    (debian / "srv/data").mkdir()
    (debian / "srv/data").chmod(0o777)
    (debian / CONFIGURATION).write_text(
        (debian / CONFIGURATION).read_text() + '[[share]]\nname = "data"\npath = "/srv/data"\nforce_user = "nobody"\n'
    )
    (debian / "root/password").write_text(f"{PASSWORD}\n")
    (debian / "root/password").chmod(0o600)
    # As root; the file stays the server's, which lets users change their passwords.
    inside(debian, "smb3server", "user", "add", "alice", "--password-file", "/root/password", *CONFIGURED)
    assert mode(debian, f"{STATE}/users") == "600 smb3server smb3server"
    (tmp_path / "file").write_text("kept")
    with started(debian):
        smbclient(f"put {tmp_path / 'file'} file")
        assert '"name"' in inside(debian, "smb3server", "status", "--json")
        assert "iwarp" in inside(debian, "smb3server", "status")
        assert "nothing has changed" in inside(debian, *unit(debian, "ExecReload").split())
        inside(debian, "smb3server", "user", "add", "bob", "--random", *CONFIGURED)
        assert "bob" in inside(debian, "smb3server", "user", "list", *CONFIGURED)
    assert (debian / "srv/data/file").read_text() == "kept"
    guid = {path.name: path.read_bytes() for path in (debian / STATE).iterdir() if path.is_file()}

    # An upgrade keeps state and configuration.
    users = (debian / STATE / "users").read_text()
    changed = (debian / CONFIGURATION).read_text()
    install(debian, newer)
    assert (debian / CONFIGURATION).read_text() == changed
    assert {path.name: path.read_bytes() for path in (debian / STATE).iterdir() if path.is_file()} == guid
    assert mode(debian, CONFIGURATION) == "640 root smb3server"
    with started(debian):
        assert "file" in smbclient("ls")

    # Removing keeps them, too; purging does not. Shares are nobody's business.
    inside(debian, "dpkg", "-r", "smb3server")
    assert not (debian / "usr/lib/smb3server").exists()
    assert (debian / STATE / "users").read_text() == users and (debian / CONFIGURATION).read_text() == changed
    inside(debian, "dpkg", "-P", "smb3server")
    assert (
        not (debian / STATE).exists()
        and not (debian / "var/log/smb3server").exists()
        and not (debian / "etc/smb3server").exists()
    )
    assert "smb3server" not in (debian / "etc/passwd").read_text()
    assert (debian / "srv/data/file").read_text() == "kept"


def walk_through() -> tuple[list[str], str]:
    """The commands of docs/install.md, and what they say to add to the configuration."""
    page = (ROOT / "docs/install.md").read_text().split("Then say what to share, and with whom:")[1]
    commands, added = page.split("What to add to the file:")[:2]
    blocks = [
        [line.strip() for line in part.splitlines() if line.startswith("    ")]
        for part in (commands, added.strip("\n").split("\n\n")[0])
    ]
    return [line.partition("#")[0].strip() for line in blocks[0]], "\n".join(blocks[1]) + "\n"


def test_the_walk_through_of_the_documentation(debian: Path, package: Path, tmp_path: Path) -> None:
    """Its commands as printed. systemctl is played by this test: there is no systemd in a chroot."""
    install(debian, package)
    inside(debian, "useradd", "-m", "alice")
    shutil.rmtree(debian / "srv/data", ignore_errors=True)
    commands, added = walk_through()
    (debian / CONFIGURATION).write_text(
        (debian / CONFIGURATION).read_text().replace("[server]\n", f'[server]\naudit_file = "{AUDIT}"\n') + added
    )
    # A disk that is not mounted.
    (debian / CONFIGURATION).write_text(
        (debian / CONFIGURATION).read_text() + 'audit = true\n[[share]]\nname = "usb"\npath = "/mnt/usb"\n'
    )
    words = [command.split() for command in commands]
    before = words.index(["sudo", "systemctl", "enable", "--now", "smb3server"])
    for command in words[:before]:
        if command[0] == "sudo":
            said = inside(debian, "env", f"SMB3SERVER_PASSWORD={PASSWORD}", *command[1:])
        else:
            assert command == ["sudoedit", f"/{CONFIGURATION}"]
    assert (
        "would not start"
        not in subprocess.run(
            chrooted(debian, "smb3server", "doctor", *CONFIGURED), capture_output=True, text=True, check=False
        ).stdout
    )
    assert 'path = "/srv/data"' in said
    # Without the unit's capabilities its user knows less, and claims nothing.
    own = ["setpriv", "--reuid=smb3server", "--regid=smb3server", "--init-groups", "smb3server"]
    assert json.loads(inside(debian, *own, "check", "--json"))["ok"]
    (tmp_path / "file").write_text("hers")
    with started(debian):
        for command in words[before + 1 :]:
            assert "share usb is down: /mnt/usb does not exist" in inside(debian, *command[1:])
        smbclient(f"put {tmp_path / 'file'} file")
        assert mode(debian, "srv/data/file").split()[1] == "alice"
    assert '"event": "create"' in (debian / AUDIT.lstrip("/")).read_text()
