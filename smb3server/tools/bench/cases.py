"""The cases of the bench: their names, and the options that make the client (tools/labgen.c) run them."""

from __future__ import annotations

from typing import NamedTuple

FILES = 2000
"""Number of files in the folder that is listed and whose files are opened."""
_PROTECTIONS = {"": (), "GMAC": ("-S", "gmac"), "CMAC": ("-S", "cmac"), "AES-128-GCM": ("-E", "gcm128")}


class Case(NamedTuple):
    """One case of the bench."""

    name: str
    options: tuple[str, ...]
    unit: str = "per s"
    """Unit of the rate: MB/s, or operations per second."""


def _bulk(test: str, depth: int, protection: str) -> Case:
    options = ("-t", test, "-b", "1048576", "-q", str(depth), *_PROTECTIONS[protection])
    return Case(" ".join(filter(None, (f"{test} 1 MiB q{depth}", protection))), options, "MB/s")


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(
            _bulk(test, depth, protection)
            for protection in _PROTECTIONS
            for test in ("read", "write")
            for depth in (1, 4)
        ),
        Case("4 KiB random read q1", ("-t", "randread", "-b", "4096", "-q", "1")),
        Case("4 KiB random read q32", ("-t", "randread", "-b", "4096", "-q", "32")),
        Case("echo q1", ("-t", "echo", "-q", "1")),
        Case("echo q32", ("-t", "echo", "-q", "32")),
        # -K: created files stay, so that the time for removing them does not count as time for creating them.
        Case("create + close", ("-t", "create", "-K")),
        Case("open + close", ("-t", "openclose", "-N", str(FILES))),
        Case("stat, compound", ("-t", "stat", "-N", str(FILES))),
        Case(f"list {FILES} entries", ("-t", "list", "-N", str(FILES))),
        Case("connect + NTLM + tree", ("-t", "sess")),
    )
}
CREATED = "c[0-9]*-[0-9]*-[0-9]*"
"""Pattern of the files that "create + close" leaves in the share."""
