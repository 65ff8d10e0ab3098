"""CREATE (MS-SMB2 3.3.5.9).

Reading order: ``handler`` (the request) -> ``contexts`` (what it asks for) -> ``opening`` (the file) -> ``granting``
(oplock or lease).
"""
