"""A node of a cluster, and the services that move between nodes (docs/high-availability.md).

Reading order: ``view`` (what the store says) -> ``lease_keeper`` and ``membership`` (this node's lease and fence) ->
``address``, ``peers``, ``tickle`` -> ``service_owner`` (one service) -> ``freshness`` -> ``cluster`` (all services) ->
``witness_source``.
"""
