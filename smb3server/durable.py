"""Durable opens (MS-SMB2 3.3.5.9.6, 3.3.5.9.7, 3.3.5.9.10, 3.3.5.9.12): they outlive their connection for a while."""

from __future__ import annotations


class Durability:
    """What makes an open durable. ``forget`` ends it when the open is closed."""

    __slots__ = ()

    def forget(self) -> None:
        return
