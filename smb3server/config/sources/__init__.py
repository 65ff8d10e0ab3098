"""What a configuration takes from other files: users, passwords, stored shares, smb.conf."""
