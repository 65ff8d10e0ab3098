"""What administrators can see of a running server.

Belongs here: the admin socket, the report and its explanations. Not here: the commands that print them (``cli``).

Reading order: ``admin_socket`` -> ``report`` (everything, as JSON) -> ``rdma_reasons`` (why a client does not use RDMA)
-> ``mount_commands`` (how a client connects) -> ``own_servers`` (servers on this machine).
"""
