"""``python -m smb3server``."""

import sys

from smb3server.cli import main

sys.exit(main())
