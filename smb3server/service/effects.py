"""When a changed setting takes effect on a running server: one table for each part of the configuration.

[docs/operating.md](../../docs/operating.md) has the same tables for operators.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any


class Effect(enum.Enum):
    """The moment from which a changed setting counts."""

    AT_ONCE = "at once"
    NEW_OPENS = "for files opened from now on"
    NEW_TREES = "for shares connected to from now on"
    NEW_LOGONS = "for logons from now on"
    NEW_CONNECTIONS = "for connections from now on"
    REPLACED = "at once: the share is removed and added again"
    RESTART = "after a restart"


_AT_ONCE, _LOGONS, _CONNECTIONS, _RESTART = (
    Effect.AT_ONCE,
    Effect.NEW_LOGONS,
    Effect.NEW_CONNECTIONS,
    Effect.RESTART,
)

SETTINGS: Mapping[str, Effect] = {
    "server_name": _RESTART,
    "comment": _AT_ONCE,
    "min_dialect": _CONNECTIONS,
    "rdma_min_dialect": _CONNECTIONS,
    "max_dialect": _CONNECTIONS,
    "require_signing": _CONNECTIONS,
    "require_encryption": _CONNECTIONS,
    "ciphers": _CONNECTIONS,
    "signing_algorithms": _CONNECTIONS,
    "rdma_transforms": _CONNECTIONS,
    # Sessions and connections that are no longer allowed end.
    "allow_guest": _AT_ONCE,
    "allow_anonymous": _AT_ONCE,
    "hosts": _AT_ONCE,
    "guests_see_accounts": _AT_ONCE,
    "groups": _AT_ONCE,
    "admins": _AT_ONCE,
    "share_folders": _AT_ONCE,
    "min_password_length": _AT_ONCE,
    "keytab": _LOGONS,
    "ntlm": _LOGONS,
    "trusted_realms": _LOGONS,
    "unknown_principals": _LOGONS,
    "watchdog": _RESTART,
    "test_fsctls": _AT_ONCE,
    "multichannel": _CONNECTIONS,
    "rss": _AT_ONCE,
    "leases": _CONNECTIONS,
    "directory_leases": _CONNECTIONS,
    # Listeners on fabrics are made with the size of messages.
    "max_io_size": _RESTART,
    "max_message_size": _RESTART,
    "max_message_before_authentication": _RESTART,
    "rdma_read_size": _CONNECTIONS,
    "iwarp_crc": _RESTART,
    "max_credits": _CONNECTIONS,
    "credits_before_authentication": _CONNECTIONS,
    "max_async_requests": _AT_ONCE,
    "interim_delay": _AT_ONCE,
    "failed_logon_delay": _AT_ONCE,
    "failed_logons_per_account": _AT_ONCE,
    "failed_logons_per_address": _AT_ONCE,
    "max_logon_delay": _AT_ONCE,
    "lockout_failures": _AT_ONCE,
    "lockout_time": _AT_ONCE,
    "authentication_timeout": _CONNECTIONS,
    "negotiate_timeout": _CONNECTIONS,
    "max_sessions_in_progress": _AT_ONCE,
    "max_sessions": _AT_ONCE,
    "max_channels": _AT_ONCE,
    "max_trees": _AT_ONCE,
    "max_opens": _AT_ONCE,
    "max_locks": _AT_ONCE,
    "max_watchers": _AT_ONCE,
    "max_connections": _AT_ONCE,
    "max_unauthenticated": _AT_ONCE,
    "max_unauthenticated_per_address": _AT_ONCE,
    "max_user_share": _AT_ONCE,
    "max_sessions_per_user": _AT_ONCE,
    "max_locks_per_user": _AT_ONCE,
    "max_watchers_per_user": _AT_ONCE,
    "max_lent_per_user": _AT_ONCE,
    "max_reserved_per_user": _AT_ONCE,
    "idle_session_timeout": _AT_ONCE,
}
"""The fields of ``Settings``. What a user already has beyond a lowered limit stays."""

SERVER: Mapping[str, Effect] = {
    # These three have tables of their own, or rules: users who are gone lose their sessions.
    "shares": _AT_ONCE,
    "accounts": _AT_ONCE,
    "settings": _AT_ONCE,
    "log_level": _AT_ONCE,
    # The log's and the audit's files are opened again by each reload. Their names stay.
    "log": _RESTART,
    "metrics": _RESTART,
    "traces": _RESTART,
    "users_file": _AT_ONCE,
    # Not settings: what was found while reading.
    "notes": _AT_ONCE,
    "secret_files": _AT_ONCE,
    "command_line_passwords": _AT_ONCE,
    "listen": _RESTART,
    "port": _RESTART,
    "rdma": _RESTART,
    "rdma_port": _RESTART,
    "state": _RESTART,
    "run_as": _RESTART,
    "drop_privileges": _RESTART,
    "allow_root": _AT_ONCE,
    "sandbox": _RESTART,
    "xattrs": _RESTART,
    "cluster": _RESTART,
    "witness": _RESTART,
    "homes": _RESTART,
    "discovery": _RESTART,
    "web": _RESTART,
}
"""The fields of ``Config``."""

SHARE: Mapping[str, Effect] = {
    "name": _AT_ONCE,
    "path": Effect.REPLACED,
    "require_mount": Effect.REPLACED,
    "service": Effect.REPLACED,
    "continuous_availability": Effect.REPLACED,
    # Locks that were taken on the host have to be given back there.
    "posix_locks": Effect.REPLACED,
    # Who may write to an open file goes on writing: clients may have data in their caches.
    "read_only": Effect.NEW_OPENS,
    "read_list": Effect.NEW_OPENS,
    "write_list": Effect.NEW_OPENS,
    "force_user": Effect.NEW_OPENS,
    "symlinks": Effect.NEW_OPENS,
    "streams": Effect.NEW_OPENS,
    "veto_files": Effect.NEW_OPENS,
    "case_sensitive": Effect.NEW_OPENS,
    "create_mask": Effect.NEW_OPENS,
    "directory_mask": Effect.NEW_OPENS,
    "force_create_mode": Effect.NEW_OPENS,
    "force_directory_mode": Effect.NEW_OPENS,
    "max_connections": Effect.NEW_TREES,
    "recycle": _AT_ONCE,
    "recycle_folder": _AT_ONCE,
    "recycle_exclude": _AT_ONCE,
    "recycle_max_size": _AT_ONCE,
    "level2_oplocks": Effect.NEW_OPENS,
    "delayed_write_times": Effect.NEW_OPENS,
    "encrypt": Effect.NEW_TREES,
    # Tree connects that are no longer allowed end.
    "guest": _AT_ONCE,
    "users": _AT_ONCE,
    "hosts": _AT_ONCE,
    "remark": _AT_ONCE,
    "hidden": _AT_ONCE,
    "access_based_enumeration": _AT_ONCE,
    "hide_files": _AT_ONCE,
    "hide_dot_files": _AT_ONCE,
    "keep_inherited_flag": _AT_ONCE,
    "strict_allocate": _AT_ONCE,
    "change_notify": _AT_ONCE,
    "audit": _AT_ONCE,
}
"""The fields of ``ShareConfig``."""


def changed(old: Any, new: Any, table: Mapping[str, Effect]) -> dict[str, Effect]:
    """Return the fields of ``table`` whose values differ between two objects, and when each takes effect."""
    return {name: effect for name, effect in table.items() if getattr(old, name) != getattr(new, name)}
