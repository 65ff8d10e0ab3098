"""Commands that start, check and steer a server."""
