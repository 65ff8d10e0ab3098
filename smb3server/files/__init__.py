"""State that all opens of one file share. [MS-FSA]

Belongs here: caching rights, locks, share modes, notifications and times of a file. Not here: connections and sessions;
an owner of a lock or a lease is a type parameter or a Protocol. Stores are in ``backends``.

Reading order: ``file`` (one file, its share modes, and the table of all files) -> ``caching`` (oplocks, leases) ->
``locks`` (byte-range locks) -> ``host_locks`` (those that programs of the host see) -> ``searches`` -> ``notify``
(change notification) -> ``write_times`` -> ``flushes`` and ``symlinks`` -> ``recycling`` (where deleted files go).
"""
