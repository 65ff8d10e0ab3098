"""Puts a configured server together, starts it and stops it.

Reading order: ``reception`` (what listeners share) -> ``tcp_ports`` and ``listeners`` (SMB Direct) -> ``stand_in`` and
``shares`` -> ``state_directory`` -> ``clustering`` and ``witnessing`` (imported where they are configured) ->
``privileges`` -> ``service`` (the order of all this).
"""
