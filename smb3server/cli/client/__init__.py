"""``smb3server client``.

Reading order: ``command`` -> ``options`` (what all of them take) -> ``look``, ``change`` and ``copy`` (the commands) ->
``progress`` (how a long copy is shown) -> ``bench``.
"""
