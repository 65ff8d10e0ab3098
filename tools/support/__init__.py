"""Common parts of other tools and tests: servers in processes of their own, well-behaved clients, users,
file systems.
"""
