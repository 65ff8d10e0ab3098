"""The objects of MS-SMB2 3.3.1 and their tables. No I/O and no requests; ``ports`` says what is needed of the rooms
above.

Reading order: ``life`` and ``message_window`` -> ``objects`` (connections, channels, sessions, tree connects, opens) ->
``share`` -> ``durable``, ``replayable`` and ``replays`` (opens whose client may come back) -> ``opens`` and
``sessions`` (tables) -> ``ceilings`` (what one user may have) -> ``server_state`` (all of it together) -> ``caller`` (a
session's user, as access/ wants it) -> ``break_notifications``, ``change_reports``, ``last_close`` and ``host_changes``
(what happens to opens).
"""
