"""A server for tests of other programs: ``with smb3server.testing.serve(folder) as url``."""

from __future__ import annotations

from smb3server.testing.serving import Url, serve

__all__ = ["Url", "serve"]
