"""Microsoft's own file-server test suites against this server.

Reading order: ``table`` (outcomes, reasons, what is judged) -> ``page`` (docs/microsoft-suites.md) -> ``__main__`` (the
run).
"""
