"""The CREATE command. [MS-SMB2 3.3.5.9]

Reading order: ``handler`` (the command from request to response) -> ``contexts`` and ``checks`` (the contents of the
request) -> ``opener`` (its sender) -> ``opening`` (an attempt to open the file) with ``sharing`` and ``replacing`` ->
``granting`` (oplock or lease) -> ``response``. Special cases: ``durable`` (reconnects), ``replay`` (requests sent
twice) and ``pipe`` (named pipes). Contexts with a module of their own: ``registry``, ``queries`` (the shortest) and
``application``.
"""
