"""``python -m tools.bench``: run `smb3server bench` from a checkout."""

from __future__ import annotations

import sys

from smb3server.process import output
from smb3server.tools.bench.command import main

if __name__ == "__main__":
    sys.exit(output.run(main))
