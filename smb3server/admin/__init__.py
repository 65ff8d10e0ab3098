"""Both ends of the admin socket: what a running server answers on it, and how commands ask.

Reading order: ``socket`` (both ends) -> ``own_servers`` (finding the servers of this machine) -> ``rates`` (what moved
between two reports).
"""
