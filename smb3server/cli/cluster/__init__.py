"""Commands about a cluster and its witness.

Reading order: ``command`` -> ``status`` -> ``admin`` (moving services, maintenance) -> ``witness_calls`` and
``witness``.
"""
