"""A directory of the host as a store.

Reading order: ``syscalls`` (system calls that Python lacks) -> ``impersonate`` (acting as a user of the host) ->
``folder_names``, ``case_cache`` and ``resolve`` (finding a path below the root, ignoring case) -> ``sidecar``,
``metadata``, ``streams`` and ``kept_attributes`` (data that the host's file system cannot store) -> ``file_io``,
``file_calls``, ``page_cache``, ``mappings`` and ``release`` (data, and closing large files) -> ``reparse``, ``scan``
and ``namespace`` (links, listings, renames) -> ``kept_folders`` and ``kept_files`` (what the server makes and removes
in its own name) -> ``own_changes`` and ``watch`` (changes by other programs) -> ``file_ids``, ``storage_mark`` and
``share_root`` (which file, and which file system, it is) -> ``quotas`` (those of the kernel) -> ``handle`` ->
``retention`` and ``retained_handle`` (files that may not be changed) -> ``backend``, which opens them -> ``btrfs``,
``snapshot_folders`` and ``snapshot_making`` (snapshots: subvolumes, finding, making) -> ``apple_double``,
``foreign_streams``, ``backups`` and ``macos`` (shares for Macs).
"""
