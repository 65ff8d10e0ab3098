"""What all opens of one file share (MS-FSA).

Belongs here: caching rights, locks, share modes, notifications and times of a file. Not here: connections and sessions;
an owner of a lock or a lease is a type parameter or a Protocol. Stores are in ``backends``.

Reading order: ``file`` (the file and the table of all of them) -> ``share_modes`` -> ``caching`` (oplocks, leases) ->
``range_index`` and ``locks`` (byte ranges) -> ``host_locks`` (the same, shown to programs of the host) -> ``wildcards``
and ``enumeration`` (searches) -> ``notify`` and ``echo_filter`` (change notification) -> ``directory_leases`` ->
``write_times``, ``flushes`` and ``symlinks``.
"""
