"""The store of a cluster, opened as its configuration says. Needs aiohttp."""

from __future__ import annotations

from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.sealed_store import SealedStore
from smb3server.settings.store_access import StoreAccess, etcd_access, seal_of
from smb3server.settings.store_url import parse_url


def open_store(url: str, name: str, access: StoreAccess) -> SealedStore:
    """``name``: the cluster's. In a running event loop, to which the store belongs. Raises ``ValueError``."""
    return SealedStore(EtcdStore(parse_url(url), access=etcd_access(url, access)), seal_of(name, access))
