"""What ``smb3server doctor`` looks at: this machine, a configuration, the network, a share.

Reading order: ``findings`` (a verdict, a sentence, a remedy) -> ``host`` (this machine) -> ``config`` (a configuration)
-> ``network`` (the way to a host) -> ``patient`` (what is known of a share) -> ``transfer`` and ``fabrics`` (data,
RDMA) -> ``share`` (all of it) -> ``mount_commands`` (how clients connect).
"""
