"""The server above its state: connections come, may log on, and end.

Reading order: ``idle`` -> ``server``.
"""
