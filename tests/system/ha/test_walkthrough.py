"""docs/failover.md, run as it is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster.lab import why_not

PAGE = (
    next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists()) / "docs" / "failover.md"
)
ISOLATED = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""The page's namespaces, processes and mounts are those of the test alone."""
OWN_NAMES = "mount -t tmpfs none /run && mkdir -p /run/netns /run/lock"


@pytest.mark.long
@pytest.mark.root
@pytest.mark.interop
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_the_walk_through(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 6
    (tmp_path / "smb3server").write_text(f'#!/bin/sh\nexec {sys.executable} -m smb3server "$@"\n')
    (tmp_path / "smb3server").chmod(0o755)
    script = "\n".join([OWN_NAMES, *blocks])
    ended = subprocess.run(
        [*ISOLATED, "bash", "-eu", "-o", "pipefail", "-c", script],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": str(PAGE.parent.parent),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"served again after [0-9] seconds", ended.stdout), ended.stdout
