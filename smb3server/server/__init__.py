"""Accept connections, limit those without a session, and shut the server down.

Belongs here: what happens to a connection as a whole. Not here: what is shared by all connections
(``state.server_state``) and how a server is configured and started (``service``).

Reading order: ``server`` (with the time that a client has to negotiate and to log on) -> ``idle`` (ends unused sessions
and authenticated connections).
"""
