"""File stores behind shares. No SMB message types in here.

Reading order: ``base`` (the contract) -> ``names`` and ``eas`` (rules of Windows) -> ``deferred`` (a file that is
opened when it is needed) -> ``memory`` (the contract in little code) -> ``local`` (a directory of this machine).
"""
