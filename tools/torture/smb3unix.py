"""``python -m tools.torture.smb3unix SOURCE``: Samba's own tests of the POSIX extensions, against this server.

SOURCE is the folder of Samba's sources: Debian packages the tests of Python nowhere. They run with the libraries of
Debian's newest Samba (``tools/setup.sh samba-newest``), which takes root, and expect that files belong to uid 1000. The
exit status is 1 if a test fails.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from smb3server.process import output
from tools.torture import samba_root

ADDRESS = "127.0.0.46"
"""The tests connect to port 445 of the server."""
OWNER = 1000
_READY = "ready "
_CONFIG = """[server]
listen = ["{address}"]
state = "{place}/state"
[[user]]
name = "u"
password = "pw"
"""
_SHARE = """[[share]]
name = "{name}"
path = "{place}/share"
posix = true
force_user = "{owner}"
"""
_RUN = """import os, sys, unittest
import samba
samba.__path__.append(os.path.join(sys.argv[1], "samba"))
import samba.tests.smb3unix
unittest.main(module=samba.tests.smb3unix, argv=["smb3unix", *sys.argv[2:]])
"""


def _server(place: Path, owner: str) -> subprocess.Popen[str]:
    """Start the server, and wait until it is ready. Raises ``RuntimeError``."""
    config = place / "smb3server.toml"
    config.touch(mode=0o600)
    shares = (_SHARE.format(name=name, place=place, owner=owner) for name in ("smb3_posix_share", "tmp"))
    config.write_text(_CONFIG.format(address=ADDRESS, place=place) + "".join(shares), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "smb3server", "serve", "--config", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_READY):
            return process
    raise RuntimeError("the server did not start")


def _tests(root: Path, place: Path, source: Path, names: list[str]) -> int:
    """Run the tests, and return their exit status."""
    shutil.copytree(source / "python" / "samba" / "tests", place / "python" / "samba" / "tests")
    (place / "run.py").write_text(_RUN, encoding="utf-8")
    (place / "smb.conf").write_text("[global]\n", encoding="utf-8")
    environment = os.environ | {
        "SERVER": ADDRESS,
        "SERVER_IP": ADDRESS,
        "USERNAME": "u",
        "PASSWORD": "pw",
        "DOMAIN": "WORKGROUP",
        "SMB_CONF_PATH": str(place / "smb.conf"),
        "SERVERCONFFILE": str(place / "smb.conf"),
        "PREFIX": str(place),
        "SAMSID": "S-1-22-1",
        "SHARE1": "smb3_posix_share",
        "SHARE2": "smb3_posix_share",
    }
    command = [*samba_root.prefix(root, place), "python3", str(place / "run.py"), str(place / "python"), *names]
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, check=False).returncode


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torture.smb3unix", description=__doc__)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="folder of Samba's sources")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="such as Smb3UnixTests.test_append; default: all")
    parser.add_argument("--samba-root", type=Path, metavar="DIR", default=samba_root.DEFAULT)
    options = parser.parse_args(arguments)
    why = samba_root.why_not(options.samba_root)
    if why is None and not (options.source / "python" / "samba" / "tests" / "smb3unix.py").exists():
        why = f"no tests of Samba's in {options.source}"
    try:
        owner = pwd.getpwuid(OWNER).pw_name
    except KeyError:
        owner, why = "", why or f"the tests expect a user with uid {OWNER}"
    if why is not None:
        print(f"smb3unix: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="smb3unix-") as folder:
        place = Path(folder)
        # Users who are not root go through it.
        place.chmod(0o755)
        (place / "share").mkdir()
        os.chown(place / "share", OWNER, -1)
        server = _server(place, owner)
        try:
            return 1 if _tests(options.samba_root, place, options.source, options.tests) else 0
        finally:
            server.terminate()
            server.communicate()


if __name__ == "__main__":
    sys.exit(output.run(main))
