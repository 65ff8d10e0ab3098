"""``smb3server client``.

Reading order: ``options`` (of a connection) -> ``command`` (the group) -> ``look``, ``change`` and ``copy`` with
``progress`` -> ``bench``.
"""
