"""What ``smb3server doctor`` looks at: this machine, a configuration, the network, a share.

Reading order: ``findings`` (what a look tells) -> ``host`` (this machine) -> ``config`` (a configuration) and
``domain`` (its membership in one) ->
``network`` (a port that does not answer) -> ``fabrics``, ``transfer`` and ``share`` (a share, tried) -> ``patient``
(what all know) -> ``mount_commands`` (how a client connects).
"""
