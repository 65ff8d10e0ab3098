"""Benches for developers: fabrics without a server (``iwarp``, ``roce``), ``failover`` of a cluster, ``decoder_cost``,
and ``restored_opens``.

``python -m tools.bench`` is `smb3server bench` from a checkout.
"""
