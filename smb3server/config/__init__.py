"""The command line and the configuration file, turned into one ``Config``.

Reading order: ``error`` -> ``model`` (what comes out) -> ``checks`` (what is wrong with it) -> ``passwords`` ->
``table`` and ``values`` (what a value may be) -> ``reader`` (the file) -> ``arguments`` (the command line, and all of
it together). Nothing here loads what is configured: no cluster, no store, no server.
"""
