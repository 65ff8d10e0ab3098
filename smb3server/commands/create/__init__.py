"""CREATE (MS-SMB2 3.3.5.9).

Reading order: ``handler`` (the command from request to reply) -> ``contexts`` and ``checks`` (what is asked for) ->
``opener`` (on whose behalf) -> ``opening`` (an attempt to open) with ``sharing`` and ``replacing`` ->
``granting`` (oplock or lease) -> ``response``. Beside the way: ``durable`` (reconnects), ``replay`` (requests sent
twice) and ``pipe`` (named pipes).
"""
