"""A seccomp filter (seccomp(2)): system calls that a file server never makes fail with EPERM, in all its threads.

It lists the refused calls, not the allowed ones: the C library, RDMA libraries and Kerberos choose their calls
themselves, and may choose others in their next version. The kernel's check of credentials protects files from clients.
This filter takes away the tools by which an attacker who runs code in this process could attack the kernel or other
processes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import NamedTuple

_SAME = {
    # Not io_uring_enter: libuv's loop has a ring of its own from its start, and aborts the process if the call fails.
    "io_uring_setup": 425,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
}
"""The numbers of newer calls are the same on all architectures."""
_X86_64 = {
    "execve": 59,
    "execveat": 322,
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "setns": 308,
    "unshare": 272,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "settimeofday": 164,
    "clock_settime": 227,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "modify_ldt": 154,
    "acct": 163,
    "quotactl": 179,
    "syslog": 103,
    "vhangup": 153,
    "personality": 135,
    "mknod": 133,
    "mknodat": 259,
}
_AARCH64 = {
    "execve": 221,
    "execveat": 281,
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "setns": 268,
    "unshare": 97,
    "init_module": 105,
    "finit_module": 273,
    "delete_module": 106,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "bpf": 280,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "swapon": 224,
    "swapoff": 225,
    "reboot": 142,
    "settimeofday": 170,
    "clock_settime": 112,
    "adjtimex": 171,
    "clock_adjtime": 266,
    "sethostname": 161,
    "setdomainname": 162,
    "acct": 89,
    "quotactl": 60,
    "syslog": 116,
    "vhangup": 58,
    "personality": 92,
    "mknodat": 33,
}


class Machine(NamedTuple):
    """The system call numbers of one architecture."""

    architecture: int
    """AUDIT_ARCH_* (linux/audit.h)."""
    seccomp: int
    """The number of seccomp(2)."""
    denied: dict[str, int]


_X32 = 0x40000000
"""A second set of numbers of x86-64 begins here."""
MACHINES = {"x86_64": Machine(0xC000003E, 317, _X86_64 | _SAME), "aarch64": Machine(0xC00000B7, 277, _AARCH64 | _SAME)}

# linux/bpf_common.h, linux/seccomp.h
_LOAD_WORD = 0x20
_JUMP_EQUAL, _JUMP_AT_LEAST = 0x15, 0x35
_RETURN = 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_INSTRUCTION = struct.Struct("=HBBI")
"""struct sock_filter (linux/filter.h): code, jump if true, jump if false, operand."""
_PROGRAM = struct.Struct("@HP")
"""struct sock_fprog: the number of instructions and their address."""


def program(machine: Machine) -> bytes:
    """Build the filter: denied calls, and calls with another architecture's numbers, fail; all others are allowed."""
    numbers = sorted(machine.denied.values())
    count = len(numbers)
    instructions = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        # Jumps count from the next instruction. The last instruction refuses the call.
        (_JUMP_EQUAL, 0, count + 3, machine.architecture),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_AT_LEAST, count + 1, 0, _X32),
        *((_JUMP_EQUAL, count - index, 0, number) for index, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)


def enter() -> None:
    """Filter the calls of all threads of this process, irrevocably. Raise ``OSError`` if the kernel or the architecture
    has no such filter."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(errno.ENOSYS, f"not known on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        raise _error()
    code = ctypes.create_string_buffer(program(machine))
    described = _PROGRAM.pack(len(code) // _INSTRUCTION.size, ctypes.addressof(code))
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(
        ctypes.c_long(machine.seccomp), ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_ALL_THREADS), described
    )
    if result > 0:
        raise OSError(errno.EBUSY, f"thread {result} has another filter")
    if result < 0:
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
