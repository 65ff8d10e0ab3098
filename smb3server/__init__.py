"""SMB 2.0.2-3.1.1 file server.

The rooms, from low to high; each imports only from those before it (``tools.check_layers``), and each says in which
order to read it. docs/architecture.md has a picture, the walks of requests, and where to put a change.

``process`` -> ``wire`` (messages) -> ``backends`` (stores) -> ``crypto`` (what protects messages) -> ``access`` (what
protects files) -> ``auth`` (who somebody is) -> ``net`` -> ``settings`` -> ``files`` (what all opens of a file share)
-> ``state`` (the objects of MS-SMB2 3.3.1) -> ``dispatch`` (one message in, one reply out) -> ``rpc`` -> ``commands``
-> ``server`` -> ``persistence`` (what survives the process) -> ``status`` -> ``cluster`` -> ``client`` -> ``config`` ->
``service`` (all of it put together) -> ``tools`` -> ``cli``.
"""
