"""Decides who may do what to a file.

Belongs here: security descriptors, access masks and the rules that decide. Not here: sessions and opens. These modules
receive an ``Identity``, a ``Caller`` or a handle instead.

Reading order: ``masks`` (rights as numbers) -> ``descriptor`` (security descriptors and SIDs) -> ``claims``,
``conditions`` and ``resource_attributes`` (what entries with conditions ask for) -> ``sid_names``, ``text_reader`` and
``sddl`` (the text of all that) -> ``check`` (the access that a descriptor gives to a token) -> ``policies`` (what
central access policies take away) -> ``posix`` (converts mode and owner of the host to a descriptor, and back) ->
``inheritance`` (the descriptor of a new file) -> ``identity``, ``tokens`` and ``known_descriptors`` (SIDs of a user,
and what a descriptor grants to them) -> ``privileges`` (what is granted whatever a descriptor says) -> ``decide`` (the
rules of MS-FSA, as functions of masks: who may open, add, delete, replace or link a file) -> ``required`` (the rights
that each command needs) -> ``caller`` (applies the rules to real files) -> ``past`` (and to those of a snapshot) ->
``of_handle`` (the parts of a descriptor that clients query and set) and ``posix_security`` (mode and owner that POSIX
opens set) -> ``auditing`` (what a SACL asks to be recorded).
"""
