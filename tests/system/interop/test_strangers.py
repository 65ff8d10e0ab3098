"""What guests and anonymous users learn of a server, and whose files are shown to be whose: clients of others ask."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.support import own_user

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("rpcclient", "smbclient", "smbcacls")),
        reason="rpcclient, smbclient and smbcacls are not installed",
    ),
]

GUEST, ANONYMOUS = ["-U", "whoever%x"], ["-N", "-U", ""]
CAROL, DAVE = ["-U", "carol%pw"], ["-U", "dave%pw"]
Run = Callable[..., str]


@contextlib.contextmanager
def started(folder: Path, server: str = "") -> Iterator[Run]:
    """A server in a network of its own, for smbcacls knows port 445 alone; runs commands there."""
    (folder / "data").mkdir()
    text = f'[server]\nguest = true\nanonymous = true\nlisten = ["127.0.0.1"]\nport = 445\n{server}\n'
    for name in ("carol", "dave"):
        text += f'[[user]]\nname = "{name}"\npassword = "pw"\n'
    for name, options in (
        ("open", "guest = true\n"),
        ("secret", 'hidden = true\nremark = "plans"\nusers = ["carol"]\n'),
        ("money$", 'remark = "plans"\n'),
    ):
        text += f'[[share]]\nname = "{name}"\npath = "{folder / "data"}"\n{own_user.LINE}{options}'
    file = folder / "strangers.toml"
    file.touch(0o600)
    file.write_text(text)
    script = 'ip link set lo up && exec "$0" -m smb3server --config "$1"'
    with (folder / "log").open("w") as log:
        command = ["unshare", "-n", "sh", "-c", script, sys.executable, str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None

    def run(*command: str) -> str:
        inside = ["nsenter", f"--net=/proc/{process.pid}/ns/net", *command]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    try:
        assert any(line.startswith("ready") for line in process.stdout), (folder / "log").read_text()
        yield run
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with started(tmp_path_factory.mktemp("strangers")) as made:
        yield made


def rpc(run: Run, who: list[str], command: str) -> str:
    """Without signatures of the client's own accord: strangers have no key."""
    return run("rpcclient", "--option=client ipc signing=auto", *who, "127.0.0.1", "-c", command)


@pytest.mark.parametrize("who", [GUEST, ANONYMOUS])
def test_strangers_learn_no_names_of_accounts(run: Run, who: list[str]) -> None:
    for command in (
        "enumdomusers",
        "lookupnames carol",
        "lookupsids S-1-22-1-0",
        "querydispinfo",
        "samlookupnames domain carol",
    ):
        answer = rpc(run, who, command)
        assert "NT_STATUS_ACCESS_DENIED" in answer, (command, answer)
        assert "Cannot connect" not in answer
        assert "dave" not in answer and "root" not in answer and "S-1-5-21" not in answer
    assert "carol" in rpc(run, DAVE, "enumdomusers")


def test_strangers_learn_them_where_the_administrator_says_so(tmp_path: Path) -> None:
    with started(tmp_path, "guests_see_accounts = true") as run:
        assert "carol" in rpc(run, GUEST, "enumdomusers")


@pytest.mark.parametrize("who", [GUEST, ANONYMOUS, DAVE])
def test_hidden_shares_are_in_no_list(run: Run, who: list[str]) -> None:
    listed = run("smbclient", "-L", "127.0.0.1", *who)
    assert "open" in listed and "IPC$" in listed
    assert "secret" not in listed and "money" not in listed and "plans" not in listed
    for level in (0, 1, 2, 502):
        answer = rpc(run, who, f"netshareenum {level}")
        assert "plans" not in answer and "secret" not in answer
    assert "plans" not in rpc(run, who, "netsharegetinfo secret 1")


def test_who_may_use_a_hidden_share_may_ask_for_it(run: Run) -> None:
    assert "plans" in rpc(run, CAROL, "netsharegetinfo secret 1")
    assert "plans" in rpc(run, CAROL, "netsharegetinfo money$ 1")


def test_names_of_owners_are_shown(run: Run) -> None:
    """As accounts of the server, whoever they act as on the host."""
    assert "NT_STATUS" not in run("smbclient", "//127.0.0.1/open", *CAROL, "-c", f"put {__file__} hers")
    shown = run("smbcacls", *DAVE, "//127.0.0.1/open", "hers")
    assert re.search(r"OWNER:\S+\\carol\n", shown), shown
    assert re.search(r"ACL:\S+\\carol:ALLOWED/0x0/FULL", shown), shown
    refused = run("smbcacls", *DAVE, "//127.0.0.1/open", "hers", "-a", "ACL:dave:ALLOWED/0/FULL")
    assert "NT_STATUS_ACCESS_DENIED" in refused
    done = run("smbcacls", *CAROL, "//127.0.0.1/open", "hers", "-a", "ACL:dave:DENIED/0/READ")
    assert "NT_STATUS" not in done
    assert re.search(r"ACL:\S+\\dave:DENIED/0x0/", run("smbcacls", *CAROL, "//127.0.0.1/open", "hers"))
    refused = run("smbclient", "//127.0.0.1/open", *DAVE, "-c", "get hers /dev/null")
    assert "NT_STATUS_ACCESS_DENIED" in refused
