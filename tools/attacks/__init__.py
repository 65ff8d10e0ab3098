"""Attacks on a server started for them, while an innocent client waits for its ECHOs."""
