"""SMB 2.0.2-3.1.1 file server."""
