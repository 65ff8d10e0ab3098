"""RDMA providers: each keeps the contract of ``base``."""
