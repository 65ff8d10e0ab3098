"""The command ``smb3server``, one module per command.

Reading order: ``exits`` (statuses and errors) -> ``tree`` (the table of commands, and what a command line means) ->
``main`` -> ``running_server`` (finding a server) and ``ask_server`` (sending it a command) -> ``known_names`` (names
that it completes) -> the commands: ``server``, ``status``, ``admin``, ``doctor``, ``client``, ``cluster``, ``lab`` and
``itself``. A command's module declares options and help only. What it does lies in modules that it imports when it
runs.
"""
