"""The process's use of its host and of the interpreter, independent of SMB.

Sandbox, capabilities, log output, threads for long work and turns of the event loop belong here. Files that clients see
(``backends``) and sockets (``net``) do not.

The modules are independent. Reading order: ``turns`` and ``long_work`` (work that must not block the event loop) ->
``garbage`` -> ``parts`` (optional packages) -> ``words``, ``log_lines`` and ``output`` (printed text) ->
``log_levels``, ``log_output`` and ``log_tail`` (the log) -> ``audit_log`` -> ``secret_files``, ``own_files`` and
``state_lock`` -> ``folder_ways`` (who could lead the path of a folder elsewhere) -> ``service_manager`` ->
``capabilities`` and ``sandbox`` (privileges that the process drops).
"""
