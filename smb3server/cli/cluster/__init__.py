"""Commands about a cluster and its witness.

Reading order: ``admin`` (operations on a cluster's store) -> ``status`` -> ``command`` (the group) -> ``witness_calls``
-> ``witness``.
"""
