"""MS-SWN, the Service Witness Protocol: tells clients when to move to another node.

Reading order: ``ndr`` (structures and methods) -> ``cluster`` (what happens, and to whom) -> ``registrations`` (who
waits for what; no I/O) -> ``interface`` (the RPC methods) -> ``service`` -> ``setup`` (as it is configured) ->
``client``. Above it: ``smb3server.cluster``, ``service`` and ``cli``.
"""
