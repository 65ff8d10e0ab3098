"""The objects of MS-SMB2 3.3.1 and their tables, without I/O.

Belongs here: connections, sessions, tree connects, opens, and what follows from them alone. Not here: messages on their
way (``dispatch``) and the answers to commands (``commands``). What these objects need of rooms above is a Protocol in
``ports``.

Reading order: ``share`` -> ``life`` and ``message_window`` -> ``objects`` (Connection, Session, TreeConnect, Open) ->
``ports`` -> ``opens`` and ``sessions`` (the tables) -> ``last_close`` -> ``durable``, ``replayable`` and ``replays``
(opens that survive their connection, requests sent twice) -> ``break_notifications``, ``change_reports`` and
``host_changes`` -> ``caller`` (whom ``access`` sees) -> ``ceilings`` (what one user may have) -> ``server_state``.
"""
