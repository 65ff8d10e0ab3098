"""``python -m smb3server``."""

import sys

from smb3server.cli.main import main

sys.exit(main())
