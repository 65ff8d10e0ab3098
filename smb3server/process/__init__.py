"""The process's use of its host and of the interpreter, independent of SMB.

Sandbox, capabilities, log output, threads for long work and turns of the event loop belong here. Files that clients see
(``backends``) and sockets (``net``) do not.

Reading order: ``turns``, ``long_work``, ``storage_queue`` and ``garbage`` (work that must not block the event loop) ->
``words``, ``log_lines``, ``output`` and ``parts`` (text for people) -> ``log_levels``, ``log_output``, ``log_tail`` and
``audit_log`` (where it goes) -> ``change_times`` (when the times of files show a change), ``own_files``,
``secret_files``, ``presence``, ``state_lock`` and ``folder_ways`` (files of the server, and who could lead the path of
a folder elsewhere) -> ``capabilities`` and ``sandbox`` (privileges that the process drops) -> ``service_manager``
(systemd).
"""
