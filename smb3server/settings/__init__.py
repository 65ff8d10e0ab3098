"""What can be set, as plain values that the machinery above is handed.

Belongs here: the fields and their defaults. Not here: the configuration file and the command line (``config``), and
numbers of the specification, which are constants of the modules that use them (``files.caching.BREAK_TIMEOUT``).

Reading order: ``server`` -> ``witness`` -> ``cluster`` -> ``store_url`` and ``store_access`` (how a cluster's store is
named, and what it is reached and sealed with, loaded from the files that ``cluster`` names).
"""
