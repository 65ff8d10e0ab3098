"""The objects of MS-SMB2 3.3.1 and their tables, without I/O.

Belongs here: connections, sessions, tree connects, opens, and rules that need nothing else. Not here: receiving and
sending messages (``dispatch``) and answering commands (``commands``). ``ports`` declares a Protocol for everything that
these objects need of higher rooms.

Reading order: ``share`` -> ``life`` and ``message_window`` -> ``objects`` (Connection, Session, TreeConnect, Open) ->
``ports`` -> ``opens`` and ``sessions`` (the tables) -> ``last_close``, ``deletions`` and ``recycling`` (what becomes of
a file) -> ``durable``, ``replayable`` and ``replays`` (opens that survive their connection, requests sent twice) ->
``break_notifications``, ``change_reports`` and ``host_changes`` -> ``caller`` (the user, as rights know it) ->
``ceilings`` (limits per user) -> ``events``, ``file_events`` and ``audit`` (what is logged and recorded) ->
``server_state`` -> ``endings`` (what ends because the operator says so).
"""
