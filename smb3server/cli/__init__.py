"""The command ``smb3server``, one module per command.

Reading order: ``exits`` (statuses and errors) -> ``tree`` (the table of commands, and what a command line means) ->
``main`` -> ``together`` (options that several commands have) -> ``running_server`` and ``ask_server`` (finding a
server, and asking it) -> ``known_names`` (names that it completes) -> the commands: ``itself``, ``server``, ``admin``,
``status``, ``cluster``, ``domain``, ``client``, ``doctor`` and ``lab``.

A command's module declares options and help. What it does lies in modules that it imports when it runs.
"""
