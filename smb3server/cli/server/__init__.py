"""Commands that start, check and steer a server.

Reading order: ``serve`` and ``serving`` (from the command line to the end) -> ``check`` and ``config`` -> ``reload``
and ``stop`` -> ``log_level``, ``metrics`` and ``trace``.
"""
