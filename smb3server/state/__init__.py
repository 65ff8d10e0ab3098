"""The objects of MS-SMB2 3.3.1 and their tables.

Belongs here: connections, sessions, tree connects, opens, and rules that need nothing else. Files are touched through
the handles of their store only. Not here: receiving and sending messages (``dispatch``) and answering commands
(``commands``). ``ports`` declares a Protocol for everything that these objects need of higher rooms.

Reading order: ``share`` -> ``life`` and ``message_window`` -> ``objects`` (Connection, Session, TreeConnect, Open) ->
``ports`` -> ``opens`` and ``sessions`` (the tables) -> ``deletions`` (what becomes of a file with its last open) ->
``durable`` and ``replays`` (opens that survive their connection, requests sent twice) -> ``break_notifications``,
``change_reports`` and ``host_changes`` -> ``one_sided`` (files lent for transfers without requests) ->
``offload_tokens`` (the data that a token stands for) -> ``caller`` (the user, as rights know it) -> ``ceilings``
(limits per user) -> ``shadow_copies`` (what backup programs make) -> ``windows_events`` (Windows' numbers of events),
``audit``, ``recent_events``, ``events`` and ``file_events`` (what is logged, recorded and remembered) ->
``server_state`` -> ``disk_opens`` (opens of virtual disks) -> ``endings`` (what ends because the operator says so).
"""
