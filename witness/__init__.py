"""The Service Witness Protocol: clients register, and are notified when a service moves. [MS-SWN]

Belongs here: the protocol, its registrations and a client for tests. Not here: the state of a cluster, which comes as a
``cluster.ClusterEvents``.

Reading order: ``cluster`` (the events) -> ``ndr`` (layouts) -> ``registrations`` (registrations and waiting calls,
without I/O) -> ``interface`` (the calls) -> ``service`` -> ``setup`` (listening) -> ``client``.
"""
