"""What all opens of one file share (MS-FSA 2.1.1.3 to 2.1.1.5). Nothing here knows an open, a session or a request.

Reading order: ``share_modes``, ``locks`` (with ``range_index``) and ``caching`` (oplocks and leases) -> ``write_times``
-> ``file`` (the file that has them) -> ``notify`` (with ``echo_filter``) -> ``directory_leases``, ``host_locks``,
``flushes``, ``enumeration`` (with ``wildcards``) and ``symlinks``.
"""
