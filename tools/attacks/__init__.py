"""Attacks on a server of its own, while an innocent client waits for its ECHOs."""
