"""Shadow copies of a share on btrfs, as backup programs make them: with rpcclient and smbtorture."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab import btrfs
from tests.lab.served import open_up
from tools.support import server_process

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed (package smbclient)"),
    pytest.mark.skipif(bool(btrfs.missing()), reason=btrfs.missing()),
]
SHARE = "fsrvp_share"
"""As smbtorture wants it."""
ADMIN, USER = "games%pw", "news%pw"


class Place(NamedTuple):
    folder: Path
    share: Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    open_up(tmp_path)
    with btrfs.mounted(tmp_path) as volume:
        share = volume / "share"
        btrfs.make_subvolume(share)
        share.chmod(0o777)
        (share / "file").write_text("then")
        (share / "file").chmod(0o666)
        yield Place(tmp_path, share)


@contextmanager
def serving(place: Place, *lines: str, wrapper: Sequence[str] = ()) -> Iterator[server_process.ServerProcess]:
    text = f'[server]\nlisten = ["127.0.0.1"]\nport = 0\nadmins = ["games"]\n[[share]]\nname = "{SHARE}"\n'
    text += f'path = "{place.share}"\nsnapshots = ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S"\nshadow_copies = true\n'
    text += "\n".join(lines) + "\n"
    for name in ("games", "news"):
        text += f'[[user]]\nname = "{name}"\npassword = "pw"\nunix_user = "{name}"\n'
    folder = place.folder / "server"
    folder.mkdir(exist_ok=True)
    with server_process.running(folder, text, wrapper=wrapper) as server:
        yield server
        assert "Traceback" not in server.log_text(), server.log_text()


def run(*words: str, **environment: str) -> str:
    """What a program says, whether it succeeds or not."""
    found = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    return found.stdout + found.stderr


def rpcclient(server: server_process.ServerProcess, commands: str, user: str = ADMIN) -> str:
    return run("rpcclient", "-p", str(server.port), "-U", user, "127.0.0.1", "-c", commands)


def smbclient(server: server_process.ServerProcess, share: str, commands: str, user: str = USER) -> str:
    return run("smbclient", f"//127.0.0.1/{share}", "-p", str(server.port), "-U", user, "-c", commands)


def snapshots(place: Place) -> list[str]:
    folder = place.share / ".snapshots"
    return sorted(os.listdir(folder)) if folder.exists() else []


def expose(server: server_process.ServerProcess, context: str = "backup") -> tuple[str, str, str]:
    """Make a shadow copy. Return the numbers of the set and of the copy, and the name of the share."""
    said = rpcclient(server, f"fss_create_expose {context} ro {SHARE}")
    found = re.search(r"^([-0-9a-f]{36})\(([-0-9a-f]{36})\): share (\S+) exposed", said, re.MULTILINE)
    assert found, said
    return found[1], found[2], found[3]


def test_rpcclient_makes_and_removes_a_shadow_copy(place: Place) -> None:
    with serving(place) as server:
        assert "supports shadow copy requests" in rpcclient(server, f"fss_is_path_sup {SHARE}")
        assert "versions from 1 to 1" in rpcclient(server, "fss_get_sup_version")
        assert "does not have an associated shadow-copy" in rpcclient(server, f"fss_has_shadow_copy {SHARE}")
        set_id, copy_id, share = expose(server)
        (place.share / "file").write_text("now")
        assert "has an associated shadow-copy" in rpcclient(server, f"fss_has_shadow_copy {SHARE}")
        assert share in rpcclient(server, f"fss_get_mapping {SHARE} {set_id} {copy_id}")
        assert "then" in smbclient(server, share, "get file -")
        for command in ("put /etc/hostname file", "mkdir made", "rm file", "setmode file +r"):
            assert "NT_STATUS_ACCESS_DENIED" in smbclient(server, share, command), command
        # It is a previous version as well, and no share that anybody sees.
        assert f"{snapshots(place)[0]}" in smbclient(server, SHARE, "allinfo file")
        assert share not in run("smbclient", "-L", "127.0.0.1", "-p", str(server.port), "-U", USER)
        rpcclient(server, f"fss_delete {SHARE} {set_id} {copy_id}")
        assert snapshots(place) == []
        assert "BAD_NETWORK_NAME" in smbclient(server, share, "ls")


def test_a_schedule_spares_what_a_backup_program_reads(place: Place) -> None:
    with serving(place) as server:
        set_id, copy_id, share = expose(server)
        folder = place.folder / "server"
        once = [sys.executable, "-m", "smb3server", "snapshot", "schedule", SHARE]
        once += [
            "--config",
            str(folder / "server.toml"),
            "--state",
            str(folder / "state"),
            "--hourly",
            "0",
            "--daily",
            "0",
            "--weekly",
            "0",
        ]
        for _ in range(2):
            time.sleep(1.05)
            run(*once)
        assert len(snapshots(place)) == 2
        assert "then" in smbclient(server, share, "get file -")
        rpcclient(server, f"fss_delete {SHARE} {set_id} {copy_id}")
        assert len(snapshots(place)) == 1


def test_administrators_alone_make_shadow_copies(place: Place) -> None:
    with serving(place) as server:
        for command in (f"fss_create_expose backup ro {SHARE}", f"fss_is_path_sup {SHARE}", "fss_get_sup_version"):
            assert "0x80070005" in rpcclient(server, command, USER), command
        assert snapshots(place) == []


def test_copies_that_the_client_would_change_are_refused(place: Place) -> None:
    with serving(place) as server:
        assert "0x8004231b" in rpcclient(server, f"fss_create_expose backup rw {SHARE}")
        assert snapshots(place) == []


def test_nobody_reads_in_a_copy_what_they_may_not_read_now(place: Place) -> None:
    with serving(place) as server:
        _, _, share = expose(server)
        assert "then" in smbclient(server, share, "get file -")
        (place.share / "file").chmod(0o600)
        assert "ACCESS_DENIED" in smbclient(server, share, "get file -")
    (place.share / "file").chmod(0o666)
    with serving(place) as server:
        _, _, share = expose(server)
        assert "then" in smbclient(server, share, "get file -")
        # Of the two permissions of the share, the copy keeps the one of then. The one of now counts as well.
        config = place.folder / "server" / "server.toml"
        config.write_text(config.read_text().replace("shadow_copies = true", 'shadow_copies = true\nusers = ["games"]'))
        state = place.folder / "server" / "state"
        assert "users at once" in run(sys.executable, "-m", "smb3server", "reload", "--state", str(state))
        assert "ACCESS_DENIED" in smbclient(server, share, "get file -")
        assert "then" in smbclient(server, share, "get file -", ADMIN)


def test_persistent_copies_outlive_the_server(place: Place) -> None:
    with serving(place) as server:
        set_id, copy_id, lasting = expose(server, "app_rollback")
        _, _, passing = expose(server)
        assert len(snapshots(place)) == 2
    (place.share / "file").write_text("now")
    kept = json.loads((place.folder / "server" / "state" / "shadow-copies.json").read_text())
    assert len(kept) == 2
    with serving(place) as server:
        assert "then" in smbclient(server, lasting, "get file -")
        assert "BAD_NETWORK_NAME" in smbclient(server, passing, "ls")
        assert len(snapshots(place)) == 1
        rpcclient(server, f"fss_delete {SHARE} {set_id} {copy_id}")
        assert snapshots(place) == []


def test_shares_that_do_not_allow_it(place: Place) -> None:
    """Without a share that does, there is no pipe."""
    (place.folder / "plain").mkdir(mode=0o777)
    other = f'[[share]]\nname = "plain"\npath = "{place.folder}/plain"\n'
    with serving(place, other) as server:
        assert "0x8004230c" in rpcclient(server, "fss_is_path_sup plain")
        # A snapshot would not have what is mounted below.
        (place.share / "mounted here").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place.share / "mounted here")], check=True)
        try:
            assert "0x8004230c" in rpcclient(server, f"fss_is_path_sup {SHARE}")
        finally:
            subprocess.run(["umount", str(place.share / "mounted here")], check=True)
        assert "supports" in rpcclient(server, f"fss_is_path_sup {SHARE}")
        assert "0x80042308" in rpcclient(server, "fss_is_path_sup nosuch")
    folder = place.folder / "server2"
    folder.mkdir()
    text = f'[server]\nlisten = ["127.0.0.1"]\nport = 0\nadmins = ["games"]\n{other}'
    text += '[[user]]\nname = "games"\npassword = "pw"\n'
    with server_process.running(folder, text) as server:
        assert "OBJECT_NAME_NOT_FOUND" in rpcclient(server, "fss_get_sup_version")


@pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed (package samba-testsuite)")
def test_smbtorture(place: Place) -> None:
    """All of rpc.fsrvp but seq_timeout."""
    names = ["enum_created", "get_version", "is_path_supported", "set_ctx", "create_simple", "bad_id"]
    names += ["sc_set_abort", "sc_share_io", "share_sd"]
    with serving(place) as server:
        tests = [f"rpc.fsrvp.fsrvp.{name}" for name in names]
        said = run("smbtorture", "ncacn_np:127.0.0.1[smb2]", "-p", str(server.port), "-U", ADMIN, *tests)
        assert re.findall(r"^success: fsrvp\.(\S+)", said, re.MULTILINE) == names, said


@pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed (package samba-testsuite)")
def test_smbtorture_opens_in_a_snapshot(place: Place) -> None:
    (place.share / "subdir").mkdir()
    (place.share / "subdir").chmod(0o777)
    (place.share / "subdir" / "hardlink").touch(0o666)
    (place.share / "stream").write_text("12345678")
    name = "@GMT-2024.01.01-10.00.00"
    with serving(place) as server:
        smbclient(server, SHARE, f"put {place.share}/stream file:st")
        (place.share / ".snapshots").mkdir()
        btrfs.make_snapshot(place.share, place.share / ".snapshots" / name)
        options = {"snapshot": name, "file": "file", "stream": "st", "stream_size": "8"}
        said = run(
            *("smbtorture", f"//127.0.0.1/{SHARE}", "-p", str(server.port), "-U", USER),
            *(f"--option=torture:twrp_{key}={value}" for key, value in options.items()),
            *(f"smb2.twrp.{test}" for test in ("openroot", "listdir", "write", "stream")),
        )
        assert re.findall(r"^success: (\S+)", said, re.MULTILINE) == ["openroot", "listdir", "write", "stream"], said


HURRIED = """
import sys
from smb3server.cli.main import main
from smb3server.state import shadow_copies
shadow_copies.SHORT, shadow_copies.LONG = 1.5, 15.0
sys.argv = ["smb3server", *sys.argv[4:]]
sys.exit(main())
"""
"""The command with a timer that runs 120 times as fast."""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed (package samba-testsuite)")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_smbtorture_that_makes_no_further_call(place: Place) -> None:
    """It waits for 3 and for 30 minutes, here a hundred times as fast."""
    library = place.folder / "hurry.so"
    source = Path(__file__).parents[2] / "lab" / "hurry.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    with serving(place, wrapper=[sys.executable, "-c", HURRIED]) as server:
        said = run(
            *("smbtorture", "ncacn_np:127.0.0.1[smb2]", "-p", str(server.port), "-U", ADMIN),
            "rpc.fsrvp.fsrvp.seq_timeout",
            LD_PRELOAD=str(library),
        )
        assert "success: fsrvp.seq_timeout" in said, said
    assert len(snapshots(place)) <= 1
