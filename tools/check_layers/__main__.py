"""``python -m tools.check_layers [ROOT]``: list the wrong imports below ROOT, by default this checkout.

The exit status is 1 if there are any.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.check_layers.check import check


def main(arguments: list[str]) -> int:
    """Print the wrong imports, and return the exit status."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[2]
    wrong = check(root)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
