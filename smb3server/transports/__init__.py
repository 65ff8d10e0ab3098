"""Transports of SMB messages that are not SMB Direct."""
