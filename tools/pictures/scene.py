"""The stage: two machines, ``nas`` and ``pc``, as network namespaces of this one, with folders of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.pictures.terminal import Terminal

ROOT = Path(__file__).parents[2]
STAGED = "SMB3SERVER_PICTURES_STAGED"
PASSWORD = "wonderland"
_HOME = Path("/run/home")
_BIN = Path("/run/bin")
_DATA = Path("/srv/data")
FILM_BYTES = 1 << 30

_SETUP = """
hostname nas
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /srv
ip link set lo up
ip netns add pc
ip link add eth0 mtu 9000 type veth peer name eth0 mtu 9000 netns pc
ip addr add 192.0.2.10/24 dev eth0
ip link set eth0 up
ip -n pc addr add 192.0.2.20/24 dev eth0
ip -n pc link set eth0 up
ip -n pc link set lo up
sysctl -qw net.ipv6.conf.all.disable_ipv6=1
printf '127.0.0.1 localhost\\n192.0.2.10 nas\\n192.0.2.20 pc\\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
"""


def enter() -> None:
    """Run this program again where host name, network, /run and /srv are its own. Needs root."""
    if os.geteuid() or shutil.which("ip") is None:
        raise SystemExit("tools.pictures: needs root and iproute2, for network namespaces")
    os.environ[STAGED] = "1"
    os.chdir(ROOT)
    os.execvp(
        "unshare", ["unshare", "--net", "--mount", "--uts", sys.executable, "-m", "tools.pictures", *sys.argv[1:]]
    )


def set_up() -> None:
    """Make the two machines, the share's files and the user's credentials."""
    subprocess.run(["sh", "-e", "-c", _SETUP], check=True)
    _open_the_way(Path(sys.base_prefix), ROOT)
    for folder in (_HOME / ".config" / "smb3server", _BIN, _DATA / "photos"):
        folder.mkdir(parents=True)
    program = _BIN / "smb3server"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m smb3server "$@"\n')
    program.chmod(0o755)
    credentials = _HOME / ".config" / "smb3server" / "credentials"
    credentials.write_text(f"[nas]\nuser = alice\npassword = {PASSWORD}\n")
    credentials.chmod(0o600)
    block = os.urandom(1 << 24)
    with (_DATA / "film.mkv").open("wb") as file:
        for _ in range(FILM_BYTES // len(block)):
            file.write(block)
    (_DATA / "notes.txt").write_text("RDMA Read moves what clients write.\n")
    for number in range(1, 4):
        (_DATA / "photos" / f"summer-{number}.jpg").write_bytes(block[: number << 20])
    subprocess.run(["chown", "-R", "nobody", str(_DATA)], check=True)


def _open_the_way(*places: Path) -> None:
    """Let every user reach these places: the server becomes ``nobody``, and Python may lie in a closed home."""
    for number, place in enumerate(places):
        kept = Path(f"/run/places/{number}")
        kept.mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(place), str(kept)], check=True)
    for place in places:
        for folder in reversed(place.parents):
            if folder.exists() and not folder.stat().st_mode & 0o001:
                subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder)], check=True)
    for number, place in enumerate(places):
        if not place.exists():
            place.mkdir(parents=True)
            subprocess.run(["mount", "--bind", f"/run/places/{number}", str(place)], check=True)


def shell(machine: str, user: str, columns: int, rows: int) -> Terminal:
    """Return a shell of ``nas`` or ``pc``."""
    sign = "#" if user == "root" else "$"
    environment = {
        "PATH": f"{_BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(_HOME),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PS1": f"\\[\\e[1;32m\\]{user}@{machine}\\[\\e[0m\\]:~{sign} ",
    }
    if machine == "pc":
        environment |= {"PASSWD": PASSWORD, "SMB3SERVER_PASSWORD": PASSWORD}
    inside = ["ip", "netns", "exec", "pc"] if machine == "pc" else []
    command = [*inside, "env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    home = f"cd {_HOME}; exec bash --norc --noprofile -i"
    terminal = Terminal([*command, "sh", "-c", home], columns, rows, rf"{user}@{machine}:~[#$]$")
    terminal.wait(rf"{user}@{machine}:~[#$]$")
    terminal.forget()
    return terminal
