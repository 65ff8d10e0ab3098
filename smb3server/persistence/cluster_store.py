"""Opening the store of a cluster by its configuration. Needs aiohttp."""

from __future__ import annotations

from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.seal import Seal
from smb3server.persistence.sealed_store import SealedStore
from smb3server.settings.cluster import StoreAccess
from smb3server.settings.store_access import cluster_secret, etcd_access
from smb3server.settings.store_url import parse_url


class ClusterStore(SealedStore):
    """The store of a cluster: records with seals, in etcd."""

    def __init__(self, etcd: EtcdStore, seal: Seal) -> None:
        super().__init__(etcd, seal)
        self.etcd = etcd
        """The store below, for its upkeep."""


def open_store(url: str, name: str, access: StoreAccess) -> ClusterStore:
    """Open the store of the cluster called ``name``, for the running event loop.

    Raises ``ValueError`` if the configuration is wrong."""
    store = EtcdStore(parse_url(url), access=etcd_access(url, access))
    return ClusterStore(store, Seal(cluster_secret(access), name))
