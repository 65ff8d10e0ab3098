"""Carry clients without RDMA over SMB Direct. Reading order: ``offload`` -> ``proxy``."""
