"""What concerns the process itself, and nothing of SMB.

Reading order: each module stands alone: ``turns`` and ``long_work`` (work in turns of the event loop, and in steps on
threads), ``log_lines`` and ``output`` (what is printed), ``capabilities``, ``sandbox``, ``secret_files`` and
``state_lock`` (what is protected), ``garbage`` (the collector).
"""
