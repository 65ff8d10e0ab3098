"""What a running server says of itself.

Reading order: ``rdma_reasons`` (why RDMA is not used) -> ``report`` (everything as plain data) -> ``admin_socket`` (who
may ask) -> ``own_servers`` -> ``mount_commands``.
"""
