"""The ways that the data of READ and WRITE can travel, and how much of it went which way."""

from __future__ import annotations

import enum
import itertools
from collections import Counter

from smb3server.wire.rdma_transform import RdmaTransformId


class Way(enum.Enum):
    """How the data of one READ or WRITE travels. The values are for people."""

    INLINE = "inline"
    RDMA = "RDMA"
    RDMA_SIGNED = "RDMA, signed"
    RDMA_ENCRYPTED = "RDMA, encrypted"

    @property
    def transform(self) -> RdmaTransformId:
        """The transform that protects the data."""
        return _TRANSFORMS.get(self, RdmaTransformId.NONE)


_TRANSFORMS = {Way.RDMA_SIGNED: RdmaTransformId.SIGNING, Way.RDMA_ENCRYPTED: RdmaTransformId.ENCRYPTION}


class Payloads:
    """The payloads of one connection."""

    def __init__(self) -> None:
        self.read: Counter[Way] = Counter()
        """Bytes that READs returned, by their ways."""
        self.written: Counter[Way] = Counter()
        """Bytes that WRITEs wrote."""
        self.numbers = itertools.count()
        """Numbers for the nonces of signed payloads. Invariant: none is used twice."""
