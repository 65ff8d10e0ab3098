"""What administrators can see of a running server.

Belongs here: the report and its explanations. Not here: the admin socket (``admin``) and the commands that print them
(``cli``).

Reading order: ``report`` (everything, as JSON) -> ``open_files`` and ``resources`` (its lists) -> ``rdma_reasons`` (why
a client does not use RDMA) -> ``cluster_state``.
"""
