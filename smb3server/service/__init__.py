"""Put a configured server together, start it, change it while it runs, and stop it.

Reading order: ``reception`` (the part that all listeners share) -> ``tcp_ports`` and ``listeners`` (SMB Direct) ->
``stand_in``, ``kerberos`` and ``shares`` -> ``homes`` -> ``state_directory`` -> ``clustering``, ``witnessing`` and
``web_page`` (imported only if configured) -> ``privileges`` -> ``stored_opens``, ``running_shares`` and ``users`` (what
changes while the server runs) -> ``observing`` (log, audit, metrics, traces) -> ``effects`` (when) and ``reload`` ->
``admin`` (changes by the operator) -> ``service`` (the order of all these steps).
"""
