"""The command ``smb3server``, one module per command.

Reading order: ``exits`` (statuses and errors) -> ``tree`` (the table of commands, and what a command line means) ->
``main`` -> ``running_server`` (finding a server) -> ``known_names`` (names that it completes) -> any command. A
command's module declares options and help only.

What a command does lies in modules that it imports when it runs: ``serving``, ``status_view``, ``findings``,
``doctor_transfer``, ``doctor_share``, ``doctor_host``, ``witness_calls``, ``cluster_status``, ``cluster_admin`` and
``conformance_run`` here; ``pcap``, ``proxy``, ``verbs_check`` and ``bench`` in ``smb3server.lab``.
"""
