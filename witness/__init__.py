"""MS-SWN, the Service Witness Protocol: clients register, and are notified when a service moves.

Belongs here: the protocol, its registrations and a client for tests. Not here: what happens in a cluster, which is
handed in as ``cluster.ClusterEvents``.

Reading order: ``cluster`` (the events) -> ``ndr`` (layouts) -> ``registrations`` (who waits for what, without I/O) ->
``interface`` (the calls) -> ``service`` -> ``setup`` (listening) -> ``client``.
"""
