"""State that outlives the process: persistent opens, stored in SQLite or etcd.

Belongs here: stores, records and the journal between opens and stores. Not here: ownership of shares in a cluster
(``cluster``), the choice of a single server's store (``service.state_directory``), and the files of a share
(``backends``).

Reading order: ``store`` (the contract: keys, conditions, leases) -> ``sqlite`` -> ``etcd`` with ``etcd_access``,
``etcd_members`` and ``etcd_renewer`` -> ``seal`` and ``sealed_store`` (records that others cannot forge) ->
``cluster_store`` -> ``records`` (opens as JSON) -> ``journal`` (which opens have to be stored, and when replies may go
out) -> ``restore``.
"""
