"""Commands of the admin socket, and what they do.

Reading order: ``shares``, ``links``, ``clients`` and ``account_keeper`` (what may be changed) -> ``commands`` (by which
command).
"""
