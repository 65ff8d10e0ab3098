"""Put a configured server together, start it, change it while it runs, and stop it.

A program serves a folder like this:

    async with Service(shares=[Share("data", "/srv/data")], users=[User("alice", password=secret)], port=0) as service:
        host, port = service.address

Reading order: ``reception`` (the part that all listeners share) -> ``tcp_ports`` and ``listeners`` (SMB Direct) ->
``stand_in``, ``homes`` and ``shares`` -> ``shadow_copies`` (snapshots as shares) -> ``state_directory`` ->
``clustering``, ``witnessing``, ``web_page``, ``quic``, ``kerberos``, ``machine_account`` and
``membership`` (imported only if configured) -> ``privileges``
-> ``stored_opens``, ``running_shares``, ``namespaces`` and ``users`` (what changes while the server runs) ->
``recycle_folders`` (which it empties) -> ``effects`` (when) and ``reload`` -> ``observing`` (what it tells of itself)
-> ``admin`` (changes by the operator) -> ``running`` (as a block of a program) -> ``processes`` (several of
them under one name) -> ``service`` (the order of all these steps).
"""

from __future__ import annotations

from smb3server.config.error import ConfigError
from smb3server.config.schema import Share, User
from smb3server.service.service import Service

__all__ = ["ConfigError", "Service", "Share", "User"]
