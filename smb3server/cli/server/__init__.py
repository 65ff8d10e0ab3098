"""Commands that start, check and steer a server.

Reading order: ``serve`` and ``serving`` (the server in the foreground) -> ``check`` and ``config`` (its configuration)
-> ``reload``, ``stop`` and ``log_level`` (what changes it) -> ``metrics`` and ``trace`` (what it tells).
"""
