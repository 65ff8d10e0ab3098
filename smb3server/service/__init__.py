"""Put a configured server together, start it and stop it.

Reading order: ``reception`` (the part that all listeners share) -> ``tcp_ports`` and ``listeners`` (SMB Direct) ->
``stand_in`` and ``shares`` -> ``state_directory`` -> ``clustering`` and ``witnessing`` (imported only if configured) ->
``privileges`` -> ``service`` (the order of all these steps).
"""
