"""State that outlives the process: persistent opens, stored in SQLite or etcd.

Belongs here: stores, records and the journal between opens and stores. Not here: ownership of shares in a cluster
(``cluster``), the choice of a single server's store (``service.state_directory``), and the files of a share
(``backends``).

Reading order: ``store`` (the contract: keys, conditions, leases) -> ``sqlite`` -> ``seal`` (records that others cannot
forge) -> ``etcd`` with ``etcd_access`` and ``etcd_health`` -> ``storage`` (marks of file systems) -> ``records`` (opens
as JSON) -> ``journal`` (which opens have to be stored, and when replies may go out) -> ``restore``. Of backup programs:
``shadow_copies``.
"""
