"""Turn the command line and the configuration file into one ``Config``.

Reading order: ``error`` -> ``model`` (the result) -> ``checks`` (contradictions in it) -> ``passwords`` -> ``table``
and ``values`` (types of values) -> ``reader`` (the file) -> ``arguments`` (the command line, and the whole
configuration). Nothing here loads the configured parts: no cluster, no store, no server.
"""
