"""Announces the server on its networks: mDNS for Finder and Nautilus, WS-Discovery for Windows Explorer.

Read ``links`` (where), ``mdns``, then ``soap``, ``wsd_messages``, ``wsd_sockets`` and ``wsd`` (WS-Discovery), and
``announcer``, which starts all that.
"""
