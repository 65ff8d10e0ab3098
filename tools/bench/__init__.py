"""Benches for developers: fabrics without a server (``iwarp``, ``roce``), ``failover`` of a cluster, ``decoder_cost``.

``python -m tools.bench`` is `smb3server bench`, out of a checkout.
"""
