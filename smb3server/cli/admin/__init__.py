"""Commands that administer users, shares, snapshots, sessions and files.

Reading order: ``session`` and ``file`` (the shortest) -> ``share`` and ``dfs`` -> ``snapshot`` -> ``users_store`` and
``users_view`` (the accounts, and how they are listed) -> ``password_input`` and ``password_hash`` -> ``user``.
"""
