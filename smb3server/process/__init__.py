"""What the process asks of its host and of the interpreter; nothing here knows SMB.

Belongs here: sandbox, capabilities, log output, threads for long work, turns of the event loop. Not here: files that
clients see (``backends``) and sockets (``net``).

Each module stands for itself: ``turns`` and ``long_work`` (work that must not hold up the event loop), ``garbage``,
``log_lines`` and ``output`` (what is printed), ``secret_files`` and ``state_lock``, ``capabilities`` and ``sandbox``
(what the process gives up).
"""
