"""``python -m tools.bench``: run `smb3server bench` from a checkout."""

from __future__ import annotations

import sys

from smb3server.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
