"""Stores behind shares: files, streams and directories, whatever keeps them.

Belongs here: everything that touches the files of a share. Not here: messages, sessions, share modes, locks and rights
of SMB users; a store knows the host's users alone. What the server itself keeps over a restart is in ``persistence``.

Reading order: ``base`` (the contract) -> ``names`` (what a path may be, and how names of Windows lie on disk) ->
``eas`` (rules of extended attributes) -> ``memory`` (the contract at its shortest) -> ``local`` (a directory of the
host) -> ``deferred`` (a handle that is not open yet).
"""
