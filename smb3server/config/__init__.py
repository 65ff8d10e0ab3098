"""The command line and the configuration file, turned into one ``Config``.

Belongs here: the names of keys and options, and how their values are written. Not here: the fields that they set and
their defaults (``settings``), except those of shares and listeners (``model``).

Reading order: ``error`` -> ``model`` (what comes out) -> ``checks`` (what is wrong with it) -> ``passwords`` ->
``table`` (a TOML table with known keys) and ``values`` (how a value is written) -> ``reader`` (the file) ->
``arguments`` (the command line, and all of it together). Nothing here loads what is configured: no cluster, no store,
no server.
"""
