"""FlashNet: files of another machine, read and written by RDMA without its program. docs/flashnet.md tells the rest.

Reading order: ``lender`` (the server) -> ``client`` -> ``bench`` (the comparison).
"""

from flashnet.client import Client, LentFile, connect
from flashnet.lender import Lender

__all__ = ["Client", "Lender", "LentFile", "connect"]
