"""Benches for developers: fabrics without a server (``iwarp``, ``roce``), ``failover`` of a cluster, ``decoder_cost``,
``restored_opens``, ``sizing`` (the memory of connections, opens and buffers), and ``bytecodes`` of small operations.

``python -m tools.bench`` is `smb3server bench` from a checkout.
"""
