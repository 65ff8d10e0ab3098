"""Turn the command line and the configuration file into one ``Config``.

Belongs here: the names of keys and options, and how their values are written. Not here: the fields that they set, with
their defaults (``settings``), except those of shares and listeners (``model``).

Reading order: ``error`` -> ``model`` (the result) -> ``checks`` (contradictions in it) -> ``passwords`` -> ``table`` (a
TOML table with known keys) and ``values`` (types of values) -> ``reader`` (the file) -> ``arguments`` (the command
line, and the whole configuration). Nothing here loads the configured parts: no cluster, no store, no server.
"""
