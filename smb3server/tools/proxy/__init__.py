"""Carries clients that know no RDMA onto SMB Direct. Reading order: ``offload`` -> ``proxy``."""
