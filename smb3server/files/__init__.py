"""State that all opens of one file share. [MS-FSA]

Belongs here: caching rights, locks, share modes, notifications and times of a file. Not here: connections and sessions;
an owner of a lock or a lease is a type parameter or a Protocol. Stores are in ``backends``.

Reading order: ``file`` (one file, and the table of all files) -> ``share_modes`` -> ``caching`` (oplocks, leases) ->
``range_index`` and ``locks`` (byte-range locks) -> ``host_locks`` (byte-range locks that programs of the host see) ->
``wildcards`` and ``enumeration`` (searches) -> ``notify`` and ``echo_filter`` (change notification) ->
``directory_leases`` -> ``write_times`` and ``delayed_write_times`` -> ``flushes`` and ``symlinks``.
"""
