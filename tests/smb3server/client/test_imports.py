"""What a command of the client imports: each module costs time at every start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab.remote import PASSWORD, Home

HEAVY = (
    "concurrent.futures.thread",
    "configparser",
    "construct",
    "cryptography.x509",
    "ctypes",
    "difflib",
    "email",
    "encodings.idna",
    "gssapi",
    "impacket",
    "json",
    "krb5",
    "lz4",
    "msgspec",
    "rich",
    "secrets",
    "smb3server.cli.client.bench",
    "smb3server.cli.client.copy",
    "smb3server.client.file",
    "smb3server.client.handle",
    "smb3server.client.links",
    "smb3server.client.mirror",
    "smb3server.client.one_sided",
    "smb3server.client.share_list",
    "smb3server.client.transfers",
    "smb3server.client.watching",
    "smb3server.compression.transform",
    "smb3server.config.command_line",
    "smb3server.state",
    "smb3server.wire.apple",
    "smb3server.wire.change_notify",
    "smb3server.wire.create_contexts",
    "smb3server.wire.dfs",
    "smb3server.wire.file_info",
    "smb3server.wire.fs_info",
    "smb3server.wire.ioctl",
    "smb3server.wire.lock",
    "smb3server.wire.oplock_break",
    "smbdirect.core.connection",
    "smbdirect.providers.base",
    "smbdirect.providers.iwarp",
    "smbdirect.providers.make",
    "smbdirect.providers.roce",
    "smbdirect.providers.verbs",
    "smbdirect.rdma.connection",
    "smbdirect.transport",
    "spnego",
    "uvloop",
)
OURS, OTHERS = 105, 255
"""Modules that may be loaded: some more than are."""
SCRIPT = """
import sys
from smb3server.cli.main import main
status = main(sys.argv[1:])
print(status, *sorted(sys.modules), file=sys.stderr)
"""


def test_what_ls_does_not_import(served: Home, folder: Path, tmp_path: Path) -> None:
    (folder / "a").touch()
    environment = {**os.environ, "SMB3SERVER_PASSWORD": PASSWORD, "HOME": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT, "client", "ls", f"{served.url}/test"]
    done = subprocess.run(words, check=False, env=environment, capture_output=True, text=True, timeout=60)
    status, *loaded = done.stderr.split()
    assert (status, done.stdout) == ("0", "a\n"), done.stderr
    assert "smb3server.client.share" in loaded
    assert not set(HEAVY) & set(loaded)
    ours = [name for name in loaded if name.partition(".")[0] in ("smb3server", "smbdirect")]
    assert len(ours) < OURS, ours
    assert len(loaded) - len(ours) < OTHERS, sorted(set(loaded) - set(ours))
