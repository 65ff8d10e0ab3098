"""``smb3server status``."""
