"""Start ``python -m smb3server`` and a few others out of an interpreter that has their modules already.

Hundreds of tests start the command as a process of its own. A new interpreter spends half a second of processor time
on imports, several times what the server then does. So each process that runs tests keeps one interpreter, the spare,
which has imported them and does nothing else. Where a test starts the command, the spare forks: twice, so that the new
process becomes a child of the process that runs the tests, which adopts orphans for this moment
(PR_SET_CHILD_SUBREAPER, prctl(2)).

The test gets what ``subprocess.Popen`` promises: a child with its process id, descriptors, folder and environment.
After ``ip netns exec`` the fork enters the namespaces that a program in place of the command has there. Where a fork
could not give what is asked for, the command has an interpreter of its own: for another user or program before the
command, for other variables that are read when modules are imported, and on a terminal. So it has for tests that ask
for one (``own_interpreter``), and always with ``OWN_INTERPRETERS=1``. /proc/PID/cmdline is the spare's, and a fork that
ends leaves its modules as they are: to take them apart would copy the memory that it shares with the spare.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import json
import os
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VARIABLE = "OWN_INTERPRETERS"
_MODULES = ("smb3server", "tests.lab.hostile_client", "tests.lab.pausing", "tests.lab.stalling")
_PROGRAMS = tuple(str(ROOT / "examples" / name) for name in ("flashnet", "rstore"))
_LOADED = (
    "tests.lab",
    *("smb3server.cli.main", "smb3server.cli.server.serving", "smb3server.service.service"),
    *("smb3server.service.clustering", "smb3server.service.witnessing", "smb3server.service.web_page"),
    *("smb3server.discovery", "smbdirect.providers.iwarp", "smbdirect.providers.roce", "smb3server.client.share"),
    *("pyroute2", "uvloop", "psutil", "aiohttp", "zeroconf", "multiprocessing.context"),
)
"""What the spare imports: what starts of the command import when they get there."""
_READ_AT_IMPORT = ("PYTHON", "SMB3SERVER_NATIVE", "SLOW_", "LD_", "LC_", "LANG")
"""How variables begin that an interpreter or a module may have read before the fork."""
_NAMESPACES = ("pid", "user")
"""Those that a fork is in as the spare is. It enters those of the network and of mounts."""
_NETWORK = ("ip", "netns", "exec")
_MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
"""How the words before the command begin if all they lead to is namespaces of the network and of mounts."""
_LIMITS = [number for name, number in sorted(vars(resource).items()) if name.startswith("RLIMIT_")]
_PR_SET_CHILD_SUBREAPER = 36
_HIGH = 500
"""Descriptors from here on are out of the way of those that a process was started with."""


def spare(descriptor: int) -> str | None:
    """Answer requests until their sender is gone. In the process that was asked for, return the module or program to
    run."""
    for module in _LOADED:
        importlib.import_module(module)
    load_commands = importlib.import_module("smb3server.commands").load
    load_commands()
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    asked = socket.socket(fileno=descriptor)
    asked.sendall(b"r")
    while True:
        ancillary: list[tuple[int, int, bytes]]
        head, ancillary, _, _ = asked.recvmsg(4, socket.CMSG_SPACE(64 * array.array("i").itemsize))
        if not head:
            return None
        received = array.array("i")
        for _, _, data in ancillary:
            received.frombytes(data)
        request = json.loads(_exactly(asked, *struct.unpack("<I", head)))
        between = os.fork()
        if between:
            for number in received:
                os.close(number)
            os.waitpid(between, 0)
            continue
        child = os.fork()
        if child:
            asked.sendall(struct.pack("<I", child))
            os._exit(0)
        asked.close()
        return _become(request, list(received))


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += (piece := connection.recv(length - len(data)))
        assert piece
    return data


def _become(request: dict[str, Any], received: list[int]) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    for number in received[len(request["descriptors"]) :]:
        entered = os.readlink(f"/proc/self/fd/{number}")
        if entered != os.readlink(f"/proc/self/ns/{entered.partition(':')[0]}") and libc.setns(number, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(number)
    del received[len(request["descriptors"]) :]
    out_of_the_way = [fcntl.fcntl(number, fcntl.F_DUPFD, _HIGH) for number in received]
    os.closerange(3, _HIGH)
    for number, wanted in zip(out_of_the_way, request["descriptors"], strict=True):
        os.dup2(number, wanted)
        os.close(number)
    if request["session"]:
        os.setsid()
    for limit, pair in zip(_LIMITS, request["limits"], strict=True):
        if resource.getrlimit(limit) != tuple(pair):
            resource.setrlimit(limit, pair)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    first, *others = request["arguments"][1:]
    program: str = others.pop(0) if first == "-m" else first
    sys.path[0] = request["folder"] if first == "-m" else program
    sys.argv = [first, *others]
    sys.orig_argv = request["arguments"]
    while os.getppid() != request["parent"]:
        time.sleep(0.0005)
    return program


class _Spare:
    """The spare of this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._here, there = socket.socketpair()
        self.of = os.getpid()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                cwd=ROOT,
                env=environment,
            )
        if self._here.recv(1) != b"r":
            raise AssertionError("the spare interpreter did not start")

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Return the id of a new child of this process."""
        data = json.dumps(request).encode()
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._here, [struct.pack("<I", len(data))], descriptors)
                self._here.sendall(data)
                (child,) = struct.unpack("<I", _exactly(self._here, 4))
                while _parent(child) != os.getpid():
                    time.sleep(0.0002)
            finally:
                _adopt_orphans(False)
        assert isinstance(child, int)
        return child


def _adopt_orphans(yes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])


def _surroundings(process: object = "thread-self") -> list[object]:
    """Return what a process inherits from the thread that starts it, and cannot be told to change."""
    place = Path(f"/proc/{process}")
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    return [
        *(os.readlink(place / "ns" / name) for name in _NAMESPACES),
        *(status[name] for name in ("Uid", "Gid", "Groups", "CapInh", "CapEff", "CapBnd", "SigBlk", "NoNewPrivs")),
        status["Cpus_allowed"],
        [int(status["SigIgn"], 16) >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    ]


def _entered(
    before: Sequence[str], environment: Mapping[str, str], folder: str
) -> tuple[Mapping[str, str], list[int]] | None:
    """Return the variables of a command behind these words, and descriptors of its namespaces of the network and of
    mounts. Return None if it would differ from one without them in more than that, or not run."""
    with subprocess.Popen(
        [*before, "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
    ) as there:
        assert there.stdin is not None and there.stdout is not None
        try:
            there.stdin.write(b"\n")
            there.stdin.flush()
        except BrokenPipeError:
            return None
        if not there.stdout.readline():
            return None
        place = Path(f"/proc/{there.pid}")
        if _surroundings(there.pid) != _surroundings() or (place / "cwd").readlink() != Path(folder).resolve():
            return None
        variables = [os.fsdecode(one).partition("=") for one in (place / "environ").read_bytes().split(b"\0") if one]
        return {name: value for name, _, value in variables}, _namespaces(there.pid)


def _namespaces(process: object) -> list[int]:
    """Return descriptors of a process's namespaces of the network and of mounts."""
    return [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in ("net", "mnt")]


_own = threading.local()


@contextmanager
def own_interpreter() -> Iterator[None]:
    """Let what this thread starts have an interpreter of its own: for tests that measure starts, memory or what
    /proc/PID/cmdline shows."""
    before = getattr(_own, "wanted", False)
    _own.wanted = True
    try:
        yield
    finally:
        _own.wanted = before


def _parted(given: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words before the interpreter, and those from it on."""
    words = tuple(map(os.fspath, given)) if isinstance(given, list | tuple) else ()
    at = words.index(sys.executable) if sys.executable in words else len(words)
    return words[:at], words[at:]


def _can_fork(given: Mapping[str, Any]) -> bool:
    """Tell whether a fork of the spare gives what ``subprocess.Popen`` is asked for."""
    before, arguments = _parted(given["args"])
    if (
        len(arguments) < 3
        or not (arguments[1] in _PROGRAMS or (arguments[1] == "-m" and arguments[2] in _MODULES))
        or getattr(_own, "wanted", False)
        or not (not before or (before[:3] == _NETWORK and before[4:10] in ((), _MOUNTS)))
    ):
        return False
    plain = {
        "executable": None,
        "preexec_fn": None,
        "close_fds": True,
        "shell": False,
        "restore_signals": True,
        "gid": None,
        "gids": None,
        "uid": None,
        "umask": -1,
        "process_group": -1,
    }
    if any(given[name] != value for name, value in plain.items()):
        return False
    if any(os.isatty(number) for number in _standard(given)):
        return False
    paths = (given["env"] or os.environ).get("PYTHONPATH", "").split(os.pathsep)
    return {Path(path) for path in paths if path} <= {ROOT}


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT) and name != "PYTHONPATH"
    }


def _standard(given: Mapping[str, Any]) -> list[int]:
    return [
        own if number == -1 else number
        for own, number in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"]))
    ]


_first = threading.Lock()
_spares: list[_Spare] = []
_at_first: dict[str, str] = {}
"""The variables at the time of ``install``; empty before."""


def _own_spare() -> _Spare:
    with _first:
        if not _spares or _spares[-1].of != os.getpid():
            _spares[:] = [_Spare(_at_first)]
        return _spares[-1]


def ready() -> None:
    """Start the spare, if commands are started out of it: before a test counts what this process has open."""
    if _at_first:
        _own_spare()


def install() -> None:
    """Let ``subprocess`` start the command out of a spare interpreter, where that makes no difference."""
    if os.environ.get(VARIABLE) == "1":
        return
    plainly = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(plainly)
    _at_first.update(os.environ)
    surroundings, variables = _surroundings(), _read_at_import(_at_first)

    @functools.wraps(plainly)
    def execute_child(process: Any, *positional: Any, **named: Any) -> None:
        given = {
            name.removeprefix("unused_"): value
            for name, value in signature.bind(process, *positional, **named).arguments.items()
        }
        environment: Mapping[str, str] = {
            os.fsdecode(name): os.fsdecode(value)
            for name, value in (os.environ if given["env"] is None else given["env"]).items()
        }
        before, arguments = _parted(given["args"])
        folder = os.path.abspath(given["cwd"] or ".")
        entered: list[int] = []
        if _can_fork(given) and _surroundings() == surroundings and _read_at_import(environment) == variables:
            if before:
                environment, entered = _entered(before, environment, folder) or (environment, entered)
            else:
                entered = _namespaces("thread-self")
        if not entered:
            plainly(process, *positional, **named)
            return
        passed = sorted(map(int, given["pass_fds"]))
        request = {
            "arguments": arguments,
            "environment": environment,
            "folder": folder,
            "descriptors": [0, 1, 2, *passed],
            "session": given["start_new_session"],
            "limits": [resource.getrlimit(limit) for limit in _LIMITS],
            "umask": _umask(),
            "parent": os.getpid(),
        }
        try:
            process.pid = _own_spare().start(request, [*_standard(given), *passed, *entered])
        finally:
            for number in entered:
                os.close(number)
        process._child_created = True
        process._close_pipe_fds(
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:\t")[2].split()[0], 8)


def _run(program: str) -> None:
    """Run a module or a folder as the program, and end as an interpreter does, as far as others see it."""
    try:
        if program in _PROGRAMS:
            runpy.run_path(program, run_name="__main__")
        else:
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            raise end from None
        os._exit((end.code or 0) & 0xFF)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    try:
        to_run = spare(int(sys.argv[1]))
    except KeyboardInterrupt:
        to_run = None
    if to_run is not None:
        _run(to_run)
