"""QUERY_INFO and SET_INFO. [MS-SMB2 3.3.5.20, 3.3.5.21]

Reading order: ``query_info`` with ``file_levels`` and ``fs_levels`` (one encoder per level) -> ``presentation``
(attributes that clients see different from the store) and ``posix`` (what POSIX opens see) -> ``quotas`` (both ways) ->
``set_info`` with ``rename`` and ``waits``, as they may have to wait.
"""
