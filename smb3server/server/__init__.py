"""Accept connections, limit those without a session, and shut the server down.

Belongs here: what happens to a connection as a whole. Not here: what is shared by all connections
(``state.server_state``) and how a server is configured and started (``service``).

Reading order: ``server`` -> ``idle`` (ends unused sessions and connections).
"""
