"""A store in memory, for tests and demonstrations.

Reading order: ``nodes`` -> ``backend``.
"""
