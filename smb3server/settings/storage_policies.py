"""Policies of storage quality of service, as plain data. [MS-SQOS 1.3]"""

from __future__ import annotations

from typing import NamedTuple


class StoragePolicy(NamedTuple):
    """What a flow with this policy may have. 0 in a limit means that there is none."""

    policy_id: bytes
    """The GUID, as it is on the wire."""
    name: str
    minimum_iops: int = 0
    """Normalized operations per second that clients are told they get. The server keeps nothing free for them."""
    maximum_iops: int = 0
    """Normalized operations per second."""
    maximum_bandwidth: int = 0
    """KiB per second."""
