"""File stores behind shares. No SMB message types in here."""
