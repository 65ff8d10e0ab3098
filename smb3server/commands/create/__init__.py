"""CREATE (MS-SMB2 3.3.5.9).

Reading order: ``handler`` (the request) -> ``contexts`` (what it asks for) -> ``checks`` -> ``opener`` (who opens) ->
``opening`` (the file), with ``parents`` (its folder), ``sharing`` (other opens of it) and ``replacing`` -> ``granting``
(oplock or lease) -> ``durable`` and ``replay`` (clients that come back) -> ``response`` -> ``pipe``.
"""
