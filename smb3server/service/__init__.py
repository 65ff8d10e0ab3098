"""Put a configured server together, start it, change it while it runs, and stop it.

Reading order: ``reception`` (the part that all listeners share) -> ``tcp_ports`` and ``listeners`` (SMB Direct) ->
``stand_in``, ``homes`` and ``shares`` -> ``state_directory`` -> ``clustering``, ``witnessing``, ``web_page`` and
``kerberos`` (imported only if configured) -> ``privileges`` -> ``stored_opens``, ``running_shares`` and ``users`` (what
changes while the server runs) -> ``effects`` (when) and ``reload`` -> ``observing`` (what it tells of itself) ->
``admin`` (changes by the operator) -> ``service`` (the order of all these steps).
"""
