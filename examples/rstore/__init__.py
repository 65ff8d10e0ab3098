"""RStore: a store of named memory regions that lie in the memory of many servers, read and written one-sided.

Reading order: ``layout`` (where the bytes of a region are) -> ``calls`` (the control path) -> ``memory_server`` ->
``master`` -> ``client`` -> ``blocking`` (the same for programs without asyncio) -> ``local`` (a store for
the time of a block) -> ``interrupts`` (the end of a program that has processes). docs/rstore.md tells the rest.
"""

from rstore.blocking import Store, open_store
from rstore.calls import StoreRefused
from rstore.client import Client, Region, RegionGone, RegionLost, connect

__all__ = ["Client", "Region", "RegionGone", "RegionLost", "Store", "StoreRefused", "connect", "open_store"]
