"""Turn the command line and the configuration file into one ``Config``.

Belongs here: the names of keys and options, and how their values are written. Not here: the fields that they set, with
their defaults (``settings``), except those of shares and listeners (``model``).

Reading order: ``error`` (a mistake and its place) -> ``schema`` (every section and key, declared once) -> ``values``
(what needs more than its type to be right) -> ``positions`` (where the keys of a text stand) -> ``sections`` (values of
the declared types) -> ``model`` (the result) -> ``build`` (the result from the sections) -> ``checks`` (contradictions
in it) -> ``reader`` (the file) -> ``sources`` (what other files add) -> ``command_line`` (what overrides it) ->
``advice``, ``service_user`` and ``examination`` (what can be said without a server) -> ``toml``, ``effective`` and
``documents`` (a configuration as text). Nothing here loads the configured parts: no cluster, no store, no server.
"""
