"""Announces the server on its networks: mDNS for Finder and Nautilus, WS-Discovery for Windows Explorer.

Reading order: ``links`` (where) -> ``mdns`` -> ``soap``, ``wsd_messages``, ``wsd_limits``, ``wsd_sockets`` and ``wsd``
(WS-Discovery) -> ``announcer``, which starts all that.
"""
