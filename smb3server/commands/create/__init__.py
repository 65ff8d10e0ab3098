"""The CREATE command. [MS-SMB2 3.3.5.9]

Reading order: ``handler`` (the command from request to response) -> ``contexts`` and ``checks`` (the contents of the
request, and its sender) -> ``opening`` (an attempt to open the file) -> ``sharing`` (share modes, oplock or lease) ->
``durable`` (reconnects, and requests sent twice) -> ``describing`` (the response) -> ``previous`` (opens in a snapshot)
and ``virtual_disks`` (opens of a disk) -> ``looking`` (looks that nobody sees) -> ``plain`` (opens
of existing files, without the objects of a request). Contexts with a module of their own:
``registry``, ``queries`` (the shortest), ``application``, ``apple`` and ``posix``.
"""
