"""What administrators can see of a running server.

Belongs here: the report and its explanations. Not here: the admin socket (``admin``) and the commands that print
reports (``cli``).

Reading order: ``resources`` (shares, users, limits) -> ``open_files`` -> ``cluster_state`` -> ``rdma_reasons`` (why a
client does not use RDMA) -> ``report`` (everything, as JSON).
"""
