"""Turn the command line and the configuration file into one ``Config``.

Belongs here: the names of keys and options, and how their values are written. Not here: the fields that they set, with
their defaults (``settings``), except those of shares and listeners (``model``).

Reading order: ``error`` (a mistake and its place) -> ``schema`` (every section and key, declared once) -> ``toml`` and
``positions`` (the text, and where its keys stand) -> ``sections`` and ``values`` (values of the declared types) ->
``model`` (the result) -> ``build`` and
``membership`` (the result from the sections) -> ``processes`` (who serves which
share) -> ``checks`` (contradictions in it) and ``advice``
(what is allowed, and unwise) -> ``sources`` (files beside it) -> ``reader`` (the file) -> ``command_line`` (what
overrides it) and ``program`` (objects in place of it) -> ``effective`` and ``documents`` (how it is
shown) -> ``service_user`` and ``examination`` (the command smb3server check, as the user of the service).
"""
