"""The command line of the server as a configuration."""
