"""The objects of MS-SMB2 3.3.1 and their tables. No I/O and no requests; ``ports`` says what is needed of the rooms
above.

Reading order: ``life`` and ``message_window`` -> ``objects`` (connections, channels, sessions, tree connects, opens) ->
``share`` -> ``opens`` and ``sessions`` (their tables) -> ``server_state`` (all of it together) -> ``ceilings`` (what
one user may have) -> ``break_notifications``, ``change_reports``, ``last_close`` and ``host_changes`` (what happens to
opens).
"""
