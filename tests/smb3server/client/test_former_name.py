"""The former name of the library works for one release, and says that it ends."""

from __future__ import annotations

import subprocess
import sys

FORMER = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from smb3server.remote import Share, connect, sync
    import smb3server.remote.filesystem
import smb3server.client
import smb3server.client.filesystem
import smb3server.client.sync
assert connect is smb3server.client.connect and Share is smb3server.client.Share
assert sync is smb3server.client.sync
assert smb3server.remote.filesystem is smb3server.client.filesystem
assert [warning.category for warning in told] == [DeprecationWarning], told
assert "smb3server.client" in str(told[0].message)
"""


def test_the_former_name_is_the_same_library() -> None:
    subprocess.run([sys.executable, "-c", FORMER], check=True)
