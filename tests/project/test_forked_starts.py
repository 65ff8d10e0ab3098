"""What tests start out of the spare interpreter is what ``subprocess`` promises (tests/lab/forked_starts.py)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import forked_starts
from tests.lab.forked_starts import own_interpreter
from tools.cluster import network

VERSION = [sys.executable, "-m", "smb3server", "--version"]


@contextmanager
def server(folder: Path, *before: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    (folder / "share").mkdir()
    process = subprocess.Popen(
        [
            *before,
            *(sys.executable, "-m", "smb3server", "--share", f"s={folder / 'share'}", "--user", "u:pw"),
            *("--listen", "127.0.0.1", "--port", "0", "--state", "state"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        **options,  # type: ignore[call-overload]
    )
    with process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("ready") for line in process.stdout), process.stderr and process.stderr.read()
            yield process
        finally:
            process.kill()


def is_forked(process: subprocess.Popen[str]) -> bool:
    return Path(forked_starts.__file__).name in Path(f"/proc/{process.pid}/cmdline").read_text()


@pytest.fixture(autouse=True)
def spare() -> None:
    if os.environ.get(forked_starts.VARIABLE) == "1":
        pytest.skip("all starts have interpreters of their own")


def test_it_is_a_child_with_what_it_was_given(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3333), hard))
    try:
        with server(tmp_path, stdin=subprocess.PIPE, pass_fds=[writing], start_new_session=True) as process:
            place = Path(f"/proc/{process.pid}")
            assert is_forked(process)
            status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
            assert int(status["PPid"]) == os.getpid()
            assert (place / "cwd").readlink() == tmp_path and (tmp_path / "state").is_dir()
            assert (place / "fd" / str(writing)).readlink() == Path(f"/proc/self/fd/{writing}").readlink()
            assert not (place / "fd" / str(reading)).is_symlink() or (
                (place / "fd" / str(reading)).readlink() != Path(f"/proc/self/fd/{reading}").readlink()
            )
            assert process.stdin is not None
            assert (place / "fd" / "0").readlink() == Path(f"/proc/self/fd/{process.stdin.fileno()}").readlink()
            assert os.getsid(process.pid) == process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(reading)
        os.close(writing)


def test_a_signal_ends_it_as_any_child(tmp_path: Path) -> None:
    with server(tmp_path) as process:
        assert is_forked(process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL


def test_status_and_words_are_those_of_the_command() -> None:
    assert forked_starts.VARIABLE not in os.environ
    for arguments in (VERSION, [*VERSION[:3], "--no-such-option"], [*VERSION[:3], "client", "--help"]):
        forked = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        with own_interpreter():
            own = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)
        assert own.stdout or own.stderr


def test_variables_arrive() -> None:
    helped = subprocess.run(
        [*VERSION[:3], "--help"], env=os.environ | {"COLUMNS": "60"}, capture_output=True, text=True, check=True
    )
    assert "  Share directories over SMB 2.0.2 to 3.1.1, on TCP and on\n" in helped.stdout


def test_what_the_variables_of_this_process_say_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMB3SERVER_NATIVE", "0")
    with server(tmp_path) as process:
        assert not is_forked(process)


@pytest.mark.parametrize(
    "options", [{"env": os.environ | {"SMB3SERVER_NATIVE": "0"}}, {"umask": 0o77}, {"preexec_fn": os.getpid}]
)
def test_what_a_fork_cannot_give_has_an_interpreter_of_its_own(tmp_path: Path, options: dict[str, object]) -> None:
    with server(tmp_path, **options) as process:
        assert not is_forked(process)


@pytest.fixture
def namespace() -> Iterator[list[str]]:
    """How a command begins that runs in a namespace with two members on its bridge."""
    if (reason := network.why_not()) is not None:
        pytest.skip(reason)
    made = network.Network(["one", "two"])
    try:
        made.up()
        yield made.prefix("one")
    finally:
        made.down()


def seen(process: subprocess.Popen[str]) -> tuple[str, list[str], str, str]:
    """What a process sees of its network and of a file."""
    inside = ["nsenter", "-t", str(process.pid), "-m", "-n", "sh", "-c"]
    show = "readlink /proc/self/ns/net; ls /sys/class/net; cut -c1-32 /proc/net/if_inet6 | sort"
    shown = subprocess.run([*inside, show], capture_output=True, text=True, check=True).stdout.splitlines()
    file = subprocess.run([*inside, "cat /etc/hosts"], capture_output=True, text=True, check=True).stdout
    place = Path(f"/proc/{process.pid}")
    return shown[0], shown[1:], file, str((place / "cwd").readlink())


def test_it_enters_the_namespaces_of_the_words_before_it(namespace: list[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 nobody-else\n")
    bind = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    mounts = ["unshare", "--mount", "--propagation", "private", "sh", "-c", bind, "sh", str(tmp_path / "hosts")]
    for number, before in enumerate((namespace, [*namespace, *mounts])):
        (folder := tmp_path / str(number)).mkdir()
        with server(folder, *before) as process:
            assert is_forked(process)
            forked = seen(process)
        (folder / "share").rmdir()
        with own_interpreter(), server(folder, *before) as process:
            assert not is_forked(process)
            assert forked == seen(process)
        assert forked[1][:2] == ["eth0", "lo"] and (forked[2] == "127.0.0.1 nobody-else\n") == bool(number)


def test_it_is_in_the_namespace_of_the_thread_that_starts_it(namespace: list[str], tmp_path: Path) -> None:
    found: list[object] = []

    def start() -> None:
        network.enter(namespace[-1])
        with server(tmp_path) as process:
            place = Path("/proc/thread-self/ns/net").readlink()
            found.extend((is_forked(process), Path(f"/proc/{process.pid}/ns/net").readlink() == place))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found == [True, True]


def test_words_that_lead_elsewhere_lead_there(namespace: list[str], tmp_path: Path) -> None:
    with server(tmp_path, *namespace, "setpriv", "--no-new-privs") as process:
        assert not is_forked(process)
        assert "NoNewPrivs:\t1" in Path(f"/proc/{process.pid}/status").read_text()
    nowhere = subprocess.run(
        [*namespace[:3], "no-such-namespace", *VERSION], capture_output=True, text=True, timeout=60, check=False
    )
    assert nowhere.returncode and "no-such-namespace" in nowhere.stderr and not nowhere.stdout


def test_who_asks_gets_an_interpreter(tmp_path: Path) -> None:
    with own_interpreter(), server(tmp_path) as process:
        assert not is_forked(process)
