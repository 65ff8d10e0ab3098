"""The command line of the server as a configuration.

Reading order: ``options`` -> ``arguments`` (their values) -> ``command_line`` (the whole configuration).
"""
