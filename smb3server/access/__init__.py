"""Who may do what to a file.

Belongs here: security descriptors, access masks and the rules that decide. Not here: sessions and opens, of which these
modules are handed an ``Identity``, a ``Caller`` or a handle.

Reading order: ``masks`` (rights as numbers) -> ``descriptor`` (security descriptors and SIDs) -> ``check`` (what a
descriptor gives a token) -> ``posix`` (mode and owner of the host as a descriptor, and back) -> ``inheritance`` (the
descriptor of a new file) -> ``identity``, ``tokens`` and ``known_descriptors`` (what a user is to descriptors) ->
``decide`` (the rules of MS-FSA, as functions of masks: who may open, add, delete, replace or link a file) ->
``required`` (the rights that each command needs) ->
``caller`` (asks real files) -> ``of_handle`` (the parts of a descriptor that clients query and set).
"""
