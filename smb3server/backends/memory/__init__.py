"""A store in memory, for tests and as the shortest implementation of the contract.

Reading order: ``nodes`` (files and directories) -> ``backend``.
"""
