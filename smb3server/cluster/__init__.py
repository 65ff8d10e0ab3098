"""Several nodes that serve the same shares, one at a time per service.

Belongs here: who is a member, who owns a service, and what moves with it. Not here: how records are stored
(``persistence``) and how clients are notified (``witness``).

Reading order: ``view`` (what the store says) -> ``lease_keeper`` (how long this node may serve) -> ``membership`` ->
``service_owner`` (taking over and letting go) -> ``address`` (virtual addresses) -> ``cluster`` (all of it) ->
``freshness`` -> ``peers`` and ``tickle`` (clients of a node that died) -> ``witness_source``.
"""
