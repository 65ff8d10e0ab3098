"""Make the shares of a server slow that a test starts as a process (``tests.lab.slow_shares``)."""

import sys

if "smb3server" in sys.orig_argv:
    from tests.lab import slow_shares

    slow_shares.force()
