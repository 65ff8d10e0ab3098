"""A directory of a Linux machine as a store; docs/local-backend.md says what becomes of what.

Reading order: ``backend`` first. Below it ``handle`` (open files), ``resolve`` (paths that stay in the share),
``namespace`` (rename, link, unlink), ``metadata`` with ``sidecar`` and ``streams`` (what POSIX has no place for),
``impersonate`` (acting as users), ``watch`` with ``own_changes`` (changes on the host), and ``syscalls`` under all of
them.
"""
