"""The systemd unit's rules, for a server that is started without systemd."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.lab.served import ROOT

UNIT = ROOT / "dist" / "smb3server.service"
NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def words(key: str) -> list[str]:
    """What one of its lines says."""
    found = re.search(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def allowed() -> set[str]:
    """The system calls that its filter lets pass."""
    groups: dict[str, set[str]] = {}
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    )
    current = ""
    for line in shown.stdout.splitlines():
        if line.startswith("@"):
            current = line.strip()
        elif line.strip() and not line.strip().startswith("#") and current:
            groups.setdefault(current, set()).add(line.strip())

    def expand(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return set().union(*(expand(entry) for entry in groups[name]))

    found = expand("@default")
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        for name in line.lstrip("~").split():
            found = found - expand(name) if line.startswith("~") else found | expand(name)
    return found


CONFINED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = [int(text) for text in sys.argv[1].split(",")]
code = [(0x20, 0, 0, 0)]
for number in numbers:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x7FFF0000)]
code.append((0x06, 0, 0, 0x00050001))
packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *entry) for entry in code))
# PR_SET_NO_NEW_PRIVS; PR_SET_SECCOMP, SECCOMP_MODE_FILTER; PR_SET_MDWE: as NoNewPrivileges=, SystemCallFilter= and
# MemoryDenyWriteExecute= do.
assert libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
libc.prctl(65, *map(ctypes.c_ulong, (1, 0, 0, 0)))
program = struct.pack("@HP", len(code), ctypes.addressof(packed))
assert libc.prctl(22, ctypes.c_ulong(2), program) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def confined() -> list[str]:
    """Return the prefix of a command that may make only the system calls of the unit's filter."""
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())}
    numbers = sorted(known[name] for name in allowed() if name in known)
    assert known["ptrace"] not in numbers and known["mount"] not in numbers and known["setfsuid"] in numbers
    return [sys.executable, "-c", CONFINED, ",".join(map(str, numbers))]


def as_user(name: str) -> list[str]:
    """Return the prefix of a command that runs as a user with the unit's capabilities."""
    names = [capability.removeprefix("CAP_").lower() for capability in words("AmbientCapabilities")]
    capabilities = ",".join(f"+{capability}" for capability in names)
    return [
        *("setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups", "--no-new-privs"),
        *(f"--bounding-set=-all,{capabilities}", f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"),
    ]
