"""A store in memory, for tests and as the contract at its shortest.

Reading order: ``nodes`` (files and directories) -> ``backend``.
"""
