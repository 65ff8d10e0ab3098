"""The cases of the bench: their names, and the options that make the client (labgen.c) run them."""

from __future__ import annotations

from typing import NamedTuple

FILES = 2000
"""Number of files in the folder that is listed and whose files are opened."""
PASSWORD_VARIABLE = "LABGEN_PASSWORD"
"""Variable of the environment in which the client finds the password: other users of the machine see a command line."""
PROTECTIONS = {
    "": (),
    "GMAC": ("-S", "gmac"),
    "CMAC": ("-S", "cmac"),
    "AES-128-GCM": ("-E", "gcm128"),
    "AES-256-GCM": ("-E", "gcm256"),
}


class Case(NamedTuple):
    """One case of the bench."""

    name: str
    options: tuple[str, ...]
    unit: str = "per s"
    """Unit of the rate: MB/s, or operations per second."""


def size_name(size: int) -> str:
    """Return 4 KiB for 4096, and so on."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def bulk(test: str, size: int, depth: int, protection: str = "") -> Case:
    """Return the case that reads or writes blocks of ``size`` bytes in order, ``depth`` at a time."""
    options = ("-t", test, "-b", str(size), "-q", str(depth), *PROTECTIONS[protection])
    return Case(" ".join(filter(None, (f"{test} {size_name(size)} q{depth}", protection))), options, "MB/s")


def small(depth: int, test: str = "read") -> Case:
    """Return the case that reads or writes 4 KiB anywhere in the file, ``depth`` at a time."""
    return Case(f"4 KiB random {test} q{depth}", ("-t", f"rand{test}", "-b", "4096", "-q", str(depth)))


def small_file(write: bool, compound: bool) -> Case:
    """Return the case that opens, reads or writes and closes a file of 4 KiB, ``compound``: in one message."""
    what, test = ("written", "putfile") if write else ("read", "getfile")
    return Case(
        f"4 KiB file {what}{', compound' if compound else ''}", ("-t", f"{test}{1 if compound else ''}", "-b", "4096")
    )


def crowd(case: Case, connections: int) -> Case:
    """Return ``case`` for several connections at once."""
    many = f"{connections} connection{'s' if connections > 1 else ''}"
    return case._replace(name=f"{case.name}, {many}", options=(*case.options, "-connections", str(connections)))


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(
            bulk(test, 1 << 20, depth, protection)
            for protection in ("", "GMAC", "CMAC", "AES-128-GCM")
            for test in ("read", "write")
            for depth in (1, 4)
        ),
        small(1),
        small(32),
        small(32, "write"),
        Case("echo q1", ("-t", "echo", "-q", "1")),
        Case("echo q32", ("-t", "echo", "-q", "32")),
        # -K: created files stay, so that the time for removing them does not count as time for creating them.
        Case("create + close", ("-t", "create", "-K")),
        Case("open + close", ("-t", "openclose", "-N", str(FILES))),
        Case("stat, compound", ("-t", "stat", "-N", str(FILES))),
        *(small_file(write, compound) for write in (False, True) for compound in (False, True)),
        Case(f"list {FILES} entries", ("-t", "list", "-N", str(FILES))),
        Case("connect + NTLM + tree", ("-t", "sess")),
    )
}
CROWDS: dict[str, Case] = {
    case.name: case
    for case in (
        crowd(one, connections) for one in (bulk("read", 1 << 20, 4), small(8)) for connections in (1, 4, 16, 64)
    )
}
"""Cases that show how connections share a server."""
FABRIC_CASES: dict[str, Case] = {
    case.name: case
    for case in (bulk(test, 1 << 20, 4, protection) for protection in PROTECTIONS for test in ("read", "write"))
}
"""Cases that show how data that is clear, signed and encrypted moves over each fabric."""
ALL = CASES | CROWDS | FABRIC_CASES
CREATED = "c[0-9]*-[0-9]*-[0-9]*"
"""Pattern of the files that "create + close" leaves in the share."""
