"""``smb3server join``: the short name of ``smb3server domain join``."""

from smb3server.cli.domain.command import join as command

__all__ = ["command"]
