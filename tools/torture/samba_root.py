"""Debian's newest Samba in a folder of its own: its smbtorture, and its smbd for comparison.

``tools/setup.sh samba-newest`` makes the folder. Programs in it run by chroot, which takes root. What they need of this
machine is mounted for them alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.torture.release import NEWEST, ROOT
from tools.torture.server import PASSWORD, SECOND_USER, USER, ServerError

DEFAULT = ROOT / "build" / "samba-newest"
_ENTER = """root=$1 folder=$2
shift 2
mount --rbind /dev "$root/dev" && mount --rbind /proc "$root/proc" && mount -t tmpfs tmpfs "$root/tmp" || exit 125
# smbd looks up this machine's name for each connection.
mount --bind /etc/hosts "$root/etc/hosts" || exit 125
if [ -n "$folder" ]; then
  mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder" || exit 125
fi
exec chroot "$root" "$@"
"""
_START_SECONDS = 20
_STOP_SECONDS = 10
_FIRST_ADDRESS = 47
"""smbd listens on 127.0.0.47 and the following addresses, one for each server."""


def why_not(root: Path) -> str | None:
    """Return why the programs of ``root`` cannot run, and what to do about it. None if they can."""
    if not (root / "usr/bin/smbtorture").exists():
        return f"no Samba in {root}: run tools/setup.sh samba-newest (as root; or name the folder with --samba-root)"
    if os.geteuid() != 0:
        return "programs in a folder of their own need root (chroot)"
    return None


def prefix(root: Path, folder: Path | None = None) -> list[str]:
    """Return the first words of commands that run in ``root`` and see ``folder`` at its usual path."""
    place = "" if folder is None else str(folder)
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(root), place]


def smb_conf(
    place: Path, address: str, ports: str, server: str, paths: Mapping[str, Path], options: Mapping[str, Any]
) -> str:
    """Return smb.conf for a server with the shares of ``paths``. ``options``: those of newest/samba.toml."""
    places = {
        f"{kind} {word}": place / kind
        for kind, word in (
            ("private", "dir"),
            ("lock", "directory"),
            ("state", "directory"),
            ("cache", "directory"),
            ("pid", "directory"),
            ("ncalrpc", "dir"),
        )
    }
    settings = {
        **options["global"],
        **options.get("server", {}).get(server, {}),
        **places,
        "interfaces": f"{address}/8",
        "bind interfaces only": "yes",
        "smb ports": ports,
        "log file": place / "smbd.log",
    }
    text = _section("global", settings)
    for name, path in paths.items():
        text += _section(name, {**options["shares"], **options.get("share", {}).get(name, {}), "path": path})
    return text


def _section(name: str, settings: Mapping[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())


@contextlib.contextmanager
def running_samba(
    root: Path | None,
    folder: Path,
    server: str,
    number: int,
    paths: Mapping[str, Path],
    options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, int]]:
    """Run smbd of ``root`` with the shares of ``paths``, all below ``folder``; yield its address.

    ``root``: None for the smbd of this machine. ``number`` distinguishes the servers of a run. ``options``: as in
    newest/samba.toml, which they replace. Raises ``ServerError``."""
    place = folder / f"samba-{server}"
    for name in ("private", "lock", "state", "cache", "pid", "ncalrpc"):
        (place / name).mkdir(parents=True)
    if options is None:
        options = tomllib.loads((NEWEST.folder / "samba.toml").read_text(encoding="utf-8"))
    address, port = f"127.0.0.{_FIRST_ADDRESS + number}", _free_port()
    config = place / "smb.conf"
    # A test connects to port 445 of the address that it is given.
    config.write_text(smb_conf(place, address, f"{port} 445", server, paths, options), encoding="utf-8")
    inside = prefix(root, folder) if root is not None else []
    for user in (USER, SECOND_USER):
        given = subprocess.run(
            [*inside, "smbpasswd", "-c", str(config), "-s", "-a", user],
            input=f"{PASSWORD}\n{PASSWORD}\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if given.returncode:
            raise ServerError(f"smbpasswd: {given.stdout}{given.stderr}")
    log = place / "smbd.log"
    command = [*inside, "smbd", "--foreground", "--no-process-group", f"--configfile={config}"]
    with (place / "output.log").open("wb") as output:
        # A session of its own: smbd has a child for every connection, and all of them end together.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait(process, (address, port), log)
        yield address, port
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _wait(process: subprocess.Popen[bytes], address: tuple[str, int], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(address, 1):
            return
        time.sleep(0.1)
    text = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    raise ServerError(f"smbd did not start:\n{text}")
