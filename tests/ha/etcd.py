"""An etcd of the test's own, on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster import etcd
from tools.cluster.etcd import local_members


class Etcd(etcd.Etcd):
    def __init__(self, folder: Path, members: int = 1) -> None:
        if reason := etcd.why_not():
            pytest.skip(reason)
        super().__init__(folder, local_members(members))
