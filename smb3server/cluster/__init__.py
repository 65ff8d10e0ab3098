"""Clusters: several nodes that serve the same shares. Each service is on one node at a time.

Belongs here: membership, ownership of services, and everything that moves with a service. Not here: storing records
(``persistence``) and notifying clients (``witness``).

Reading order: ``view`` (the contents of the store, and which events are new) -> ``lease_keeper`` (how long this node
may serve) -> ``membership`` -> ``service_owner`` (taking over and releasing) -> ``address`` (virtual addresses) ->
``cluster`` (the node as a whole) -> ``storage`` (the file systems of shares), ``share_permissions``, ``fencer`` with
``fence_helper``, and ``upkeep`` (of etcd) -> ``peers`` and ``tickle`` (clients of a node that died) ->
``witness_source``.
"""
