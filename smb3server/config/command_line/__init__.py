"""The command line of the server as a configuration.

Reading order: ``options`` (as declared) -> ``command_line`` (what they override) -> ``arguments`` (the way from one to
the other).
"""
