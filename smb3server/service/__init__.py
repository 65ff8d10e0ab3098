"""Put a configured server together, start it, change it while it runs, and stop it.

Reading order: ``reception`` (the part that all listeners share) -> ``tcp_ports`` and ``listeners`` (SMB Direct) ->
``stand_in`` and ``shares`` -> ``state_directory`` -> ``clustering`` and ``witnessing`` (imported only if configured) ->
``privileges`` -> ``stored_opens``, ``running_shares`` and ``users`` (what changes while the server runs) -> ``effects``
(when) and ``reload`` -> ``share_admin`` and ``client_admin`` (changes by the operator) -> ``admin_commands`` ->
``service`` (the order of all these steps).
"""
