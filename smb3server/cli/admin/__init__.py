"""Commands that administer users, shares, sessions and files.

Reading order: ``session`` and ``file`` -> ``share`` -> ``password_input`` and ``password_hash`` -> ``users_store`` (the
users file) -> ``users_view`` (tables, import) -> ``user``.
"""
