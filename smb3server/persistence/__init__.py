"""What survives the process: persistent opens, in a store.

Reading order: ``store`` (the contract) -> ``sqlite`` and ``etcd`` (with ``etcd_access``, ``etcd_members``,
``etcd_renewer``) -> ``seal``, ``sealed_store`` and ``open_store`` -> ``records`` (an open as bytes) -> ``journal`` (on
the way to the store) -> ``restore`` (back again).
"""
