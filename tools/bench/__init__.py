"""Benches for developers: fabrics without a server (``iwarp``, ``roce``), ``failover`` of a cluster, ``decoder_cost``,
``restored_opens``, and ``sizing`` (the memory of connections, opens and buffers).

``python -m tools.bench`` is `smb3server bench` from a checkout.
"""
