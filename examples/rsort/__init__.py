"""RSort: a distributed sort whose shuffle is nothing but RDMA Writes into RStore.

Reading order: ``records`` (the format, its generator and its judge) -> ``sort``. docs/rsort.md tells the rest.
"""
