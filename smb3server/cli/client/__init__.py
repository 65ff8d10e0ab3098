"""``smb3server client``."""
