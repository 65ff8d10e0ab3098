"""Both ends of the admin socket: what a running server answers on it, and how commands ask.

Reading order: ``socket`` (what is asked and answered) -> ``own_servers`` (the servers of this machine).
"""
