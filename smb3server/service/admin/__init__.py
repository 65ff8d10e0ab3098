"""Commands of the admin socket, and what they do.

Reading order: ``commands`` (their table) -> ``shares`` -> ``clients`` (sessions, files) -> ``account_keeper``.
"""
