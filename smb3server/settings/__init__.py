"""All settings, as plain values. Modules above receive them when they are constructed.

Belongs here: the fields and their defaults. Not here: the configuration file and the command line (``config``), and
numbers of the specification, which are constants of the modules that use them (``files.caching.BREAK_TIMEOUT``).

Reading order: ``declaring`` (what a key is declared with) -> ``share`` and ``limits`` (keys that are used as they are
written) -> ``storage_policies`` -> ``server`` -> ``observing``, ``discovery``, ``web``, ``quic`` and ``domain`` ->
``witness`` -> ``cluster``.
"""
