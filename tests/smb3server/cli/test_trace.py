"""``smb3server trace`` where the server does not see the same folders as who asks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.served import ROOT, command, served
from tools.support import own_user

PRIVATE = [
    "unshare",
    "--mount",
    "--propagation=private",
    "sh",
    "-c",
    'mount -t tmpfs tmpfs /var/tmp && exec "$@"',
    "sh",
]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_in_a_folder_of_the_servers_own_is_found(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    file = Path(f"/var/tmp/smb3-pack-{os.getpid()}.pcapng")
    options = ["--share", own_user.option("data", share), "--user", "alice:secret-secret"]
    with served(tmp_path, *options, prefix=PRIVATE) as server:
        asked = ["trace", "127.0.0.1", "--out", str(file), "--background", "--state", str(server.state)]
        said = subprocess.run(command(*asked), cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
        assert not file.exists()
        place = said.split("Root reads it as ")[1].strip()
        assert Path(place).is_file()
        seen = ["trace", "127.0.0.2", "--out", str(tmp_path / "seen"), "--background", "--state", str(server.state)]
        said = subprocess.run(command(*seen), cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
        assert "note" not in said and (tmp_path / "seen").exists()
