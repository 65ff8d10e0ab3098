"""``python -m tools.attacks [CASE...]``: attack a server on this machine, while an innocent client waits.

Each case starts a server and reports the innocent client's slowest ECHO, both in elapsed time and in the server's
processor time, the server's memory, and the growth of its log. Exit status 1 means that a limit was exceeded, or that
an attack achieved something forbidden. As root it runs in its own network namespace; without root the cases that need
one are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from smb3server.process import output
from tools.attacks import accounts, bounds, compressed, controllers, doors, lab, rights, roce, strangers, tickets
from tools.attacks.lab import CASES, Case

MODULES = (strangers, doors, accounts, bounds, compressed, rights, roce, tickets, controllers)
"""Modules that register the cases when they are imported."""
_NAMESPACE = "TOOLS_ATTACKS_NAMESPACE"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.attacks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--seconds", type=float, default=lab.SECONDS, help="for attacks that go on")
    parser.add_argument("--list", action="store_true", help="say what there is")
    return parser.parse_args()


def why_not(chosen: Case) -> str:
    """Return what the case needs that is not here. Empty: nothing."""
    if chosen.alone and os.geteuid() != 0:
        return "root"
    return ", ".join(chosen.lacks)


def _in_own_namespace() -> int:
    """Run this command again in a network namespace of its own: some ports of a host cannot be chosen."""
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    command = [*alone, sys.executable, "-m", "tools.attacks", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, _NAMESPACE: "1"}, check=False).returncode


def main() -> int:
    """Run and report."""
    options = _arguments()
    if options.list:
        for chosen in CASES.values():
            print(f"{chosen.name:24} {chosen.says}")
        return 0
    unknown = set(options.cases) - set(CASES)
    if unknown:
        print(f"no such case: {', '.join(sorted(unknown))}")
        return 2
    if os.geteuid() == 0 and _NAMESPACE not in os.environ:
        return _in_own_namespace()
    begun, failed = time.monotonic(), []
    for name in options.cases or CASES:
        if why_not(CASES[name]):
            print(f"{name:24} left out: needs {why_not(CASES[name])}")
            continue
        verdict = lab.run(CASES[name], options.seconds)
        print(verdict, flush=True)
        for text in verdict.notes:
            print(f"    {text}")
        for text in verdict.judge():
            print(f"    FAILED: {text}", flush=True)
            failed.append(name)
    print(f"{time.monotonic() - begun:.0f} s; failed: {', '.join(dict.fromkeys(failed)) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
