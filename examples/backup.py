"""Copy a folder to a share, and go on where the last run stopped: ``python backup.py FOLDER smb://alice@nas/backup``."""

from __future__ import annotations

import sys
from pathlib import Path

from smb3server.client.sync import connect

source, url = Path(sys.argv[1]), sys.argv[2]
if not source.is_dir():
    sys.exit(f"{source} is not a folder of this machine")
with connect(url) as share:
    if not share.is_dir(""):
        sys.exit(f"{url}: the share has no such folder; make it with: smb3server client mkdir {url}")
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_dir():
            share.mkdir(name, parents=True, exist_ok=True)
        elif path.is_file() and (not share.exists(name) or share.stat(name).size != path.stat().st_size):
            done = share.upload(path, name, resume=True, verify=True)
            print(f"{name}: {done.size} bytes, {done.rate / 1e6:.0f} MB/s")
