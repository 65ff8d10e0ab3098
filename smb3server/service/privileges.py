"""The privileges of the process, reduced to those that its configuration needs.

``Privileges.restrict`` must run before there are threads: capabilities belong to threads, and a thread inherits them
from its creator. ``drop_start_privileges`` runs once everything is bound, and drops the capabilities that only
the start needs. It changes only the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pwd
import resource
import sys
import threading
from collections.abc import Container
from pathlib import Path
from types import FrameType
from typing import Any

from smb3server.admin.socket import RUNTIME_VARIABLE, runtime_directory_of
from smb3server.backends.local import impersonate
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.process import capabilities, sandbox
from smb3server.process.capabilities import NO_CAPABILITY, Capability, Sets
from smb3server.process.own_files import open_folder
from smb3server.process.words import user_name
from smb3server.status.model import ProcessRecord
from smbdirect.providers.verbs import thread as verbs_thread

log = logging.getLogger(__name__)

MAX_DESCRIPTORS = 1 << 17
_OWN_METADATA = (
    Capability.CHOWN | Capability.DAC_OVERRIDE | Capability.DAC_READ_SEARCH | Capability.FOWNER | Capability.FSETID
)
"""The server writes descriptors, attributes, times and owners of files as itself, whoever owns the file. Opens that
outlive their connection are reopened by file handle, and open_by_handle_at(2) requires CAP_DAC_READ_SEARCH.
"""
_OF_THREADS = {verbs_thread.NAME: Capability.IPC_LOCK | Capability.NET_BIND_SERVICE | Capability.DAC_OVERRIDE}
"""Capabilities, by thread name, of threads that keep their own set, because their credentials must never change.

The verbs thread registers memory, binds RDMA ports below 1024 (Linux requires CAP_NET_BIND_SERVICE there, too) and
opens devices, including those that belong to another user.
"""
# linux/prctl.h
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_MAX_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    result = int(_libc.prctl(option, *padded))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
    return result


def needed(config: Config) -> Capability:
    """Return the capabilities that a server with this configuration needs as long as it runs."""
    found = NO_CAPABILITY
    if not config.drop_privileges:
        found |= impersonate.ACTING | _OWN_METADATA
        if config.xattrs != "user":
            found |= Capability.SYS_ADMIN
    if any(service.addresses for service in config.cluster.services):
        # For addresses that move, and for notifying the clients of a node that died.
        found |= Capability.NET_ADMIN | Capability.NET_RAW
    if _may_serve(config, "roce"):
        found |= Capability.NET_RAW
    if _may_serve(config, "verbs"):
        found |= Capability.IPC_LOCK
    return found


def start_only(config: Config) -> Capability:
    """Return the capabilities that the server needs until everything is bound."""
    # CAP_SYS_PTRACE: to find the owner of a port that is in use.
    found = Capability.NET_BIND_SERVICE | Capability.SYS_PTRACE
    return found | Capability.NET_ADMIN if _may_serve(config, "roce") else found


def _may_serve(config: Config, fabric: str) -> bool:
    return config.rdma == "auto" or fabric in config.rdma.split(",")


def raise_descriptor_limit() -> None:
    """Raise the process's limit of descriptors as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def guard_memory() -> None:
    """Keep other processes of this user, and core dumps, from the memory of this one, which contains passwords."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


class Privileges:
    """The privileges of this process. Call ``restrict``, then ``drop_start_privileges``, once each."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._needed = needed(config)
        self._start_only = start_only(config) & ~self._needed
        self._particular: set[str] = set()
        """Ids of the threads named in ``_OF_THREADS``, as strings."""

    def restrict(self) -> None:
        """Become the configured user, and give up the capabilities that are not needed.

        Raises ``ConfigError`` if that is not possible.
        """
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            if capabilities.get().effective & Capability.SETPCAP:
                _clear_bounding_set()
            if self._config.run_as:
                self._become(self._config.run_as)
            _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
            _keep(self._needed | self._start_only)
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
            # Memory contains keys: processes of the same user must not read it (ptrace(2)), and there is no core dump.
            _prctl(_PR_SET_DUMPABLE, 0)
        except OSError as error:
            raise ConfigError(f"giving up privileges: {error.strerror or error}") from error
        impersonate.reconsider()
        self._check_python()
        threading.setprofile(self._thread_begins)

    def _check_python(self) -> None:
        """Note for the operator that modules which are loaded later cannot be read: features would fail one by one."""
        if not os.access(os.__file__, os.R_OK, effective_ids=True):
            self._config.notes.append(
                f"{self._config.run_as or 'this user'} may not read Python in {Path(os.__file__).parent}, so parts of "
                "the server will not work; remedy: install it where every user may read it"
            )

    def _thread_begins(self, frame: FrameType, event: str, argument: Any) -> None:
        """Reduce the capabilities of a new thread before its own function runs: some are only for the main thread."""
        sys.setprofile(None)
        wanted = _OF_THREADS.get(threading.current_thread().name)
        if wanted is not None:
            self._particular.add(str(threading.get_native_id()))
        _keep(self._needed if wanted is None else wanted)

    def drop_start_privileges(self) -> None:
        """Give up the capabilities that only the start needed, and enter the sandbox if configured. Raises
        ``ConfigError``.
        """
        threading.setprofile(None)
        try:
            _keep(self._needed)
            impersonate.reconsider()
            left = threads_with(self._start_only, self._particular)
            if left:
                log.warning("threads %s keep %s", ", ".join(left), ", ".join(capabilities.names(self._start_only)))
            if self._config.sandbox:
                sandbox.enter()
        except OSError as error:
            raise ConfigError(f"sandbox: {error.strerror or error}") from error

    def _become(self, name: str) -> None:
        """Change to the user ``name``, and keep the permitted capabilities."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise ConfigError(f"run_as: this machine has no user {name}") from None
        if os.geteuid() == entry.pw_uid:
            return
        if capabilities.get().effective & impersonate.ACTING != impersonate.ACTING:
            raise ConfigError(f"run_as: the server has to be started as root to run as {name}")
        self._hand_over_places(entry)
        _prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups(os.getgrouplist(name, entry.pw_gid))
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)

    def _hand_over_places(self, entry: pwd.struct_passwd) -> None:
        """Create the directories that the user could not create, and make the user their owner."""
        runtime = runtime_directory_of(entry.pw_name)
        if self._config.state is None:
            self._hand_over(runtime, entry)
        else:
            self._hand_over(self._config.state, entry)
            # Only the link to the socket lies there: AdminSocket.announce tells if there is none.
            with contextlib.suppress(OSError):
                self._hand_over(runtime, entry)
        os.environ[RUNTIME_VARIABLE] = str(runtime)

    def _hand_over(self, place: Path, entry: pwd.struct_passwd) -> None:
        try:
            place.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            made = False
        else:
            made = True
        descriptor = open_folder(place)
        try:
            if made:
                os.chown(f"/proc/self/fd/{descriptor}", entry.pw_uid, entry.pw_gid)
            owner = os.fstat(descriptor).st_uid
        finally:
            os.close(descriptor)
        if owner != entry.pw_uid:
            option = "--drop-privileges" if self._config.drop_privileges else "run_as"
            raise ConfigError(
                f"{option}: {place} does not belong to {entry.pw_name}; remedy: chown -R {entry.pw_name}: {place}"
            )


def _keep(wanted: Capability) -> None:
    """Reduce this thread's permitted and effective capabilities to those in ``wanted``. The others cannot
    be regained.
    """
    kept = capabilities.get().permitted & wanted
    capabilities.Change(Sets(kept, kept)).make()


def _clear_bounding_set() -> None:
    for number in range(_MAX_CAPABILITY + 1):
        try:
            if not _prctl(_PR_CAPBSET_READ, number):
                continue
        except OSError:
            # EINVAL: the kernel has no further capabilities.
            return
        _prctl(_PR_CAPBSET_DROP, number)


def _threads() -> list[tuple[str, dict[str, str]]]:
    """Return the name and the ``status`` of each thread of this process. [proc(5)]"""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            # The thread ended in the meantime.
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found.append((fields.get("Name", task.name), fields))
    return found


def threads_with(wanted: int, but: Container[str] = ()) -> list[str]:
    """Return the names of the threads with one of these capabilities, except threads whose id is in ``but``."""
    return [name for name, fields in _threads() if int(fields["CapPrm"], 16) & wanted and fields["Pid"] not in but]


def in_force() -> ProcessRecord:
    """Return the privileges in force as a record: capabilities that any thread has, other restrictions
    that all have.
    """
    threads = [fields for _, fields in _threads()]
    permitted = NO_CAPABILITY.value
    for fields in threads:
        permitted |= int(fields["CapPrm"], 16)
    return ProcessRecord(
        pid=os.getpid(),
        user=user_name(os.geteuid()),
        acts_as_users=impersonate.may_act(),
        capabilities=capabilities.names(permitted),
        no_new_privs=all(fields.get("NoNewPrivs") == "1" for fields in threads),
        sandbox=all(fields.get("Seccomp") == "2" for fields in threads),
        dumpable=_prctl(_PR_GET_DUMPABLE) == 1,
        core_limit=resource.getrlimit(resource.RLIMIT_CORE)[0],
    )
