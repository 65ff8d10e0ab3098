"""A directory of the host as a store.

Reading order: ``syscalls`` (system calls that Python's os lacks) -> ``file_calls`` (those that find and describe files)
-> ``impersonate`` (acting as a user of the host) -> ``case_cache`` and ``resolve`` (finding a path below the root,
ignoring case) -> ``sidecar``, ``kept_attributes``, ``metadata`` and ``streams`` (data that the host's file system
cannot store) -> ``file_io``, ``page_cache``, ``mappings`` and ``release`` (data, and closing large files) ->
``reparse``, ``scan`` and ``namespace`` (links, listings, renames) -> ``kept_folders`` (those that the server makes in
its own name) -> ``own_changes`` and ``watch`` (changes by other programs) -> ``file_ids``, ``folder_names``,
``share_root`` and ``storage_mark`` (which file system it is) -> ``handle`` -> ``backend``, which opens them.
"""
