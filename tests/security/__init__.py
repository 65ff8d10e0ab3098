"""Attacks on a server, each of which must fail."""
