"""Clusters: several nodes that serve the same shares. Each service is on one node at a time.

Belongs here: membership, ownership of services, and everything that moves with a service. Not here: storing records
(``persistence``) and notifying clients (``witness``).

Reading order: ``view`` (the contents of the store) -> ``lease_keeper`` (how long this node may serve) -> ``membership``
-> ``service_owner`` (taking over and releasing) -> ``address`` (virtual addresses) -> ``cluster`` (the node as a whole)
-> ``freshness`` -> ``peers`` and ``tickle`` (clients of a node that died) -> ``witness_source``.
"""
