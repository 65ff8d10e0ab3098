"""Room for thousands of connections in one process."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
