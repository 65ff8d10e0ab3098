"""What a configuration takes from other files: users, passwords, stored shares, smb.conf.

Reading order: ``passwords`` -> ``users`` (the users file) -> ``host_users`` (users of the host) -> ``stored_shares``
(shares added at run time) -> ``samba`` (smb.conf).
"""
