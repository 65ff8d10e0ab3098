"""What a configuration takes from other files: users, passwords, stored shares, smb.conf.

Reading order: ``users`` and ``passwords`` (accounts) -> ``host_users`` (users of the host) -> ``stored_shares`` (shares
that administrators make) -> ``samba`` (smb.conf).
"""
