"""One module per MS-SMB2 3.3.5.x section."""
