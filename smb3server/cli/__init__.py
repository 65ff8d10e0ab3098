"""The command ``smb3server``, one module per command.

Reading order: ``main`` (the server, and the table of commands) -> ``status`` -> ``findings`` -> ``doctor_transfer`` ->
``doctor_share`` -> ``doctor`` -> ``witness`` -> ``cluster_status`` -> ``cluster`` -> ``password_hash``. The commands
``pcap``, ``proxy``, ``verbs-check`` and ``bench`` are in ``smb3server.tools``.
"""
