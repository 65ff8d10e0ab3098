"""What administrators can see of a running server.

Belongs here: the report and its explanations. Not here: the admin socket (``admin``) and the commands that print them
(``cli``).

Reading order: ``model`` (the records) -> ``report`` (everything) -> ``open_files`` and ``resources`` (its lists) ->
``rdma_reasons`` (why a client does not use RDMA) -> ``cluster_state`` -> ``rates`` (from two reports) ->
``windows_counters`` (the metrics by the names that Windows has).
"""
