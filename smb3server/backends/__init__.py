"""Stores of files, streams and directories behind shares.

Belongs here: everything that touches the files of a share. Not here: messages, sessions, share modes, locks and rights
of SMB users. A store knows only the host's users. State that the server itself keeps over a restart is in
``persistence``.

Reading order: ``names`` (rules for paths, and how Windows names are stored on disk) -> ``name_rules`` (how names
compare) -> ``base`` (the contract) -> ``eas`` (rules of extended attributes) -> ``memory`` (the shortest
implementation) -> ``local`` (a directory of the host) -> ``forwarding`` (a handle in front of another one) and
``deferred`` (one that is not open yet) -> ``slow_store`` (stores whose storage answers late) -> ``snapshot_names``
(times in names) and ``snapshots`` (which there are, and a store for each).
"""
